//! Includes and excludes: what of SRC is the bucket's business.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};

use chiefsync::config::Filter;
use chiefsync::exit::UsageError;

/// The globs, in the order in which they were typed.
#[derive(Debug, Args)]
#[command(next_help_heading = "What goes up")]
pub struct Globs {
    /// Uploads what matches, though an earlier --exclude left it out; the last glob that matches decides. In the variable:
    /// one a line, or separated by commas.
    #[arg(long, value_name = "GLOB", env = "CHIEFSYNC_INCLUDE")]
    include: Vec<String>,
    /// Leaves out what matches: a name in any directory, a path from SRC where the glob has a slash, a directory where it
    /// ends in one. In the variable: one a line, or separated by commas.
    #[arg(long, value_name = "GLOB", env = "CHIEFSYNC_EXCLUDE")]
    exclude: Vec<String>,
    /// (is include, glob), in the order in which they were typed.
    #[arg(skip)]
    rules: Vec<(bool, String)>,
}

impl Globs {
    /// Remembers the order in which includes and excludes were typed, across both flags. What the variables say comes
    /// before what was typed; there, excludes come before includes.
    pub fn take_rules(&mut self, matches: &ArgMatches) {
        let mut rules = Vec::new();
        for (include, id, globs) in [(false, "exclude", &self.exclude), (true, "include", &self.include)] {
            if matches.value_source(id) == Some(ValueSource::EnvVariable) {
                let globs = globs.iter().flat_map(|text| split_list(text));
                rules.extend(globs.map(|glob| (0, include, glob)));
            } else if let Some(places) = matches.indices_of(id) {
                rules.extend(places.zip(globs).map(|(place, glob)| (place + 1, include, glob.clone())));
            }
        }
        rules.sort_by_key(|(place, ..)| *place);
        self.rules = rules.into_iter().map(|(_, include, glob)| (include, glob)).collect();
    }

    /// What was typed as what holds.
    ///
    /// # Errors
    /// The glob that can't be read.
    pub fn filter(&self) -> Result<Filter, UsageError> {
        let filter = Filter::new(&self.rules).map_err(|message| {
            UsageError::new(message, "write a glob: * within a name, ** across directories, ? [abc] {a,b}")
        })?;
        if !self.rules.is_empty() && self.rules.iter().all(|(include, _)| *include) {
            tracing::warn!("--include alone leaves nothing out; put --exclude '*' before it to upload nothing else");
        }
        Ok(filter)
    }
}

/// A list in a variable: one a line, or separated by commas that are not within braces.
fn split_list(text: &str) -> Vec<String> {
    let mut depth = 0_usize;
    let lines = text.contains('\n');
    let ends = |c: char| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if lines { c == '\n' } else { c == ',' && depth == 0 }
    };
    text.split(ends).map(str::trim).filter(|glob| !glob.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_in_a_variable() {
        for (text, globs) in [
            ("*.log", &["*.log"][..]),
            ("*.log, cache/ ,,", &["*.log", "cache/"]),
            ("*.{a,b},c", &["*.{a,b}", "c"]),
            ("a,b\nc d\n", &["a,b", "c d"]),
            (" ", &[]),
        ] {
            assert_eq!(split_list(text), globs, "{text:?}");
        }
    }
}
