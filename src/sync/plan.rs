//! Plan: from what a look found and what the journal knows to what is to be done. Pure: no I/O, no clock.

use crate::checkpoint::{Rank, looks_temporary};
use crate::disk::Stat;
use crate::journal::Uploaded;
use crate::key::{Key, Prefix};
use crate::sync::scan::{Found, What};

/// What is to be done about one file, link or other thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send it.
    Upload {
        /// The version that was seen.
        stat: Stat,
        /// Whether its content must be compared with what is up first: perhaps nothing but its times changed.
        compare: bool,
        /// When, relative to its neighbours.
        rank: Rank,
    },
    /// Let the store copy the object that the link's target has.
    Copy {
        /// The link's target.
        target: Key,
        /// The target's version.
        stat: Stat,
    },
    /// What is up is what is here.
    Unchanged,
    /// What is up is probably what is here; it was read so soon after its last change that it is hashed once more.
    LookAgain,
    /// Not before the end marker.
    Wait,
    /// A link to a directory: recorded in the manifest.
    RecordLink {
        /// The directory, relative to SRC.
        target: Key,
    },
    /// Not uploaded, and no promise broken: said.
    Skip(String),
    /// Should be in the bucket and can't be: exit 3 if it stays so.
    Missing(String),
}

impl Action {
    /// The word for `--dry-run` and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Action::Upload { compare: false, .. } => "upload",
            Action::Upload { compare: true, .. } => "compare",
            Action::Copy { .. } => "copy",
            Action::Unchanged => "unchanged",
            Action::LookAgain => "look-again",
            Action::Wait => "wait",
            Action::RecordLink { .. } => "link",
            Action::Skip(_) => "skip",
            Action::Missing(_) => "missing",
        }
    }
}

/// What holds for all files of one run of the engine.
#[derive(Clone, Debug)]
pub struct Rules {
    /// What stands in front of the keys.
    pub prefix: Prefix,
    /// After the end marker nothing waits.
    pub draining: bool,
}

/// Decides about one thing. `known` is what the journal says of its key, `target` of its link's target.
pub fn decide(found: &Found, known: Option<&Uploaded>, target: Option<&Uploaded>, rules: &Rules) -> Action {
    if let Err(error) = rules.prefix.check(&found.key) {
        return Action::Missing(error.to_string());
    }
    match &found.what {
        What::File(stat) => decide_file(&found.key, *stat, known, rules),
        What::FileLink { target: name, stat } => {
            let copied = known.is_some_and(|k| {
                k.link.as_ref() == Some(name)
                    && k.stat.same_version(stat)
                    && target.is_none_or(|t| t.digest == k.digest)
            });
            if copied { Action::Unchanged } else { Action::Copy { target: name.clone(), stat: *stat } }
        }
        What::DirectoryLink { target } => Action::RecordLink { target: target.clone() },
        What::BadLink(why) => Action::Missing((*why).to_owned()),
        What::Special(what) => Action::Skip((*what).to_owned()),
        What::Unreadable(why) => Action::Missing(why.clone()),
    }
}

fn decide_file(key: &Key, stat: Stat, known: Option<&Uploaded>, rules: &Rules) -> Action {
    let rank = Rank::of(key);
    match known {
        Some(known) if known.link.is_none() && known.stat.same_version(&stat) => {
            if known.young_parts > 0 {
                Action::LookAgain
            } else {
                Action::Unchanged
            }
        }
        _ if !rules.draining && looks_temporary(key) => Action::Wait,
        // The same size: perhaps only the times or the inode changed, and hashing costs less than sending.
        Some(known) if known.link.is_none() && known.stat.size == stat.size => {
            Action::Upload { stat, compare: true, rank }
        }
        _ => Action::Upload { stat, compare: false, rank },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::{Digest, Sha256};
    use crate::store::ETag;

    fn stat(size: u64, tick: i64) -> Stat {
        Stat { dev: 1, ino: 7, size, mtime_ns: tick, ctime_ns: tick }
    }

    fn uploaded(stat: Stat, content: &str) -> Uploaded {
        Uploaded {
            stat,
            digest: Digest::One(Sha256::of(content.as_bytes())),
            etag: ETag::new("e"),
            young_parts: 0,
            link: None,
            partial: false,
        }
    }

    /// The truth table: what was found x what is known x whether the end marker was seen.
    #[test]
    fn the_plan_is_a_table() {
        let file = |size, tick| What::File(stat(size, tick));
        let target = Key::new("target").unwrap();
        let link = |tick| What::FileLink { target: target.clone(), stat: stat(3, tick) };
        let same = uploaded(stat(3, 1), "abc");
        let young = Uploaded { young_parts: 1, ..same.clone() };
        let copied = Uploaded { link: Some(target.clone()), ..same.clone() };
        let other = uploaded(stat(3, 1), "xyz");
        let moved = Uploaded { stat: Stat { dev: 9, ..same.stat }, ..same.clone() };
        type Row<'a> = (&'a str, What, Option<&'a Uploaded>, Option<&'a Uploaded>, bool, &'a str);
        #[rustfmt::skip]
        let table: &[Row<'_>] = &[
            ("a",      file(3, 1),                          None,          None,         false, "upload"),
            ("a",      file(3, 1),                          Some(&same),   None,         false, "unchanged"),
            ("a",      file(3, 1),                          Some(&moved),  None,         false, "unchanged"),
            ("a",      file(3, 1),                          Some(&young),  None,         false, "look-again"),
            ("a",      file(3, 2),                          Some(&same),   None,         false, "compare"),
            ("a",      file(4, 2),                          Some(&same),   None,         false, "upload"),
            ("a",      file(3, 1),                          Some(&copied), None,         false, "upload"),
            ("a.tmp",  file(3, 1),                          None,          None,         false, "wait"),
            ("a.tmp",  file(3, 1),                          None,          None,         true,  "upload"),
            ("a.tmp",  file(3, 1),                          Some(&same),   None,         false, "unchanged"),
            ("a.tmp",  file(4, 2),                          Some(&same),   None,         false, "wait"),
            ("l",      link(1),                             None,          Some(&same),  false, "copy"),
            ("l",      link(1),                             Some(&copied), Some(&same),  false, "unchanged"),
            ("l",      link(1),                             Some(&copied), Some(&other), false, "copy"),
            ("l",      link(2),                             Some(&copied), Some(&same),  false, "copy"),
            ("l",      link(1),                             Some(&same),   Some(&same),  false, "copy"),
            ("d",      What::DirectoryLink { target: target.clone() }, None, None,         false, "link"),
            ("bad",    What::BadLink("outside"),            None,          None,         false, "missing"),
            ("fifo",   What::Special("a FIFO"),             None,          None,         true,  "skip"),
            ("locked", What::Unreadable("denied".into()),   Some(&same),   None,         true,  "missing"),
        ];
        for (name, what, known, target, draining, action) in table {
            let rules = Rules { prefix: Prefix::new("job").unwrap(), draining: *draining };
            let found = Found { key: Key::new(name).unwrap(), what: what.clone() };
            assert_eq!(decide(&found, *known, *target, &rules).name(), *action, "{name} {what:?} {known:?} {draining}");
        }
        let long = Found { key: Key::new("k".repeat(1021)).unwrap(), what: file(1, 1) };
        let rules = Rules { prefix: Prefix::new("job").unwrap(), draining: false };
        assert_eq!(decide(&long, None, None, &rules).name(), "missing");
    }
}
