//! Settle: the files that were seen and are not up, and what each of them waits for.
//!
//! Invariant: a file is settled when it was closed after writing or renamed into place, or when two looks, the settle time
//! apart, saw the same version. After the end marker everything counts as settled.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use crate::checkpoint::Rank;
use crate::clock::{Duration, Instant};
use crate::disk::Stat;
use crate::key::Key;
use crate::sync::look::Evidence;
use crate::sync::order::Order;
use crate::sync::plan::Action;

/// Files up to this size go in a lane of their own, so that neither they nor large ones starve.
pub const SMALL_BYTES: u64 = 256 * 1024;

/// What a file waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// To settle.
    Unsettled,
    /// For its turn.
    Ready,
    /// For its job to end.
    Sending {
        /// It was seen to have changed since: look at it once more when the job ends, with this evidence.
        again: Option<Evidence>,
    },
}

/// One file that was seen and is not up.
#[derive(Clone, Debug)]
pub struct Pending {
    /// What is to be done.
    pub action: Action,
    /// The version that was seen last.
    pub stat: Stat,
    /// When it goes, relative to its neighbours.
    pub rank: Rank,
    /// What it waits for.
    pub phase: Phase,
    /// When it was first seen to differ from what is up.
    pub noticed: Instant,
    /// When it was closed or renamed into place, if that was seen.
    pub closed: Option<Instant>,
    /// Seen to change while nobody closed it: a log, an event file.
    pub growing: bool,
    /// The scan that saw it last.
    pub scan: u64,
    /// When this version was seen first.
    since: Instant,
    /// Its place in the order: when it was seen first.
    tick: u64,
    /// When this version was seen first: it may need what was seen until then.
    needs: u64,
    /// Whether the order knows of it.
    ordered: bool,
}

/// How files settle.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Two looks this far apart settle a file that made no event.
    pub settle: Duration,
    /// A file that keeps growing goes up this often.
    pub growing_interval: Duration,
}

/// All files that were seen and are not up.
#[derive(Debug)]
pub struct PendingFiles {
    files: HashMap<Key, Pending>,
    order: Order,
    lanes: [VecDeque<Key>; 2],
    held: VecDeque<Key>,
    due: BinaryHeap<Reverse<(Instant, Key)>>,
    times: Times,
    bytes: u64,
    sending: [usize; 2],
    sent_at: HashMap<Key, Instant>,
    oldest: Option<(Instant, Instant)>,
    noticed_bytes: u64,
}

/// Which lane a file of this size takes.
pub fn lane(size_bytes: u64) -> usize {
    usize::from(size_bytes > SMALL_BYTES)
}

impl PendingFiles {
    /// None yet.
    pub fn new(times: Times) -> PendingFiles {
        PendingFiles {
            files: HashMap::new(),
            order: Order::default(),
            lanes: Default::default(),
            held: VecDeque::new(),
            due: BinaryHeap::new(),
            times,
            bytes: 0,
            sending: [0; 2],
            sent_at: HashMap::new(),
            oldest: None,
            noticed_bytes: 0,
        }
    }

    /// A file was seen that differs from what is up. `settled_by_decree`: after the end marker.
    #[allow(clippy::too_many_arguments)]
    pub fn see(
        &mut self,
        key: &Key,
        action: Action,
        stat: Stat,
        rank: Rank,
        evidence: Evidence,
        now: Instant,
        tick: u64,
        scan: Option<u64>,
        settled_by_decree: bool,
    ) {
        let last_sent = self.sent_at.get(key).copied();
        let known = self.files.contains_key(key);
        let pending = self.files.entry(key.clone()).or_insert_with(|| {
            self.bytes += stat.size;
            self.noticed_bytes += stat.size;
            Pending {
                action: action.clone(),
                stat,
                rank,
                phase: Phase::Unsettled,
                noticed: now,
                closed: None,
                // A file that went up while it grew goes on growing until somebody closes it.
                growing: last_sent.is_some(),
                scan: 0,
                since: now,
                tick,
                needs: tick,
                ordered: false,
            }
        });
        pending.scan = scan.unwrap_or(pending.scan).max(pending.scan);
        let same = known && pending.stat.same_version(&stat);
        if let Phase::Sending { again } = &mut pending.phase {
            // The job checks the version that it was given; a newer one is looked at when it ends.
            if !same || evidence == Evidence::Settled && pending.growing {
                *again = Some(evidence);
            }
            return;
        }
        if !same {
            if known && evidence == Evidence::Seen {
                pending.growing = true;
            }
            self.bytes = self.bytes - pending.stat.size + stat.size;
            self.noticed_bytes += stat.size.saturating_sub(pending.stat.size);
            pending.stat = stat;
            pending.since = now;
            pending.needs = tick;
        }
        pending.action = action;
        if evidence == Evidence::Settled {
            pending.closed = Some(now);
            pending.growing = false;
            self.sent_at.remove(key);
        }
        if !pending.ordered && !pending.growing {
            self.order.begin(key, pending.rank, pending.tick);
            pending.ordered = true;
        } else if pending.ordered && pending.growing {
            // Nothing waits for a log.
            self.order.end(key, pending.rank, pending.tick);
            pending.ordered = false;
        }
        let settled = settled_by_decree
            || evidence == Evidence::Settled
            || known && now.duration_since(pending.since) >= self.times.settle;
        let from = last_sent.unwrap_or(pending.noticed);
        let grown = pending.growing && now.duration_since(from) >= self.times.growing_interval;
        if pending.phase == Phase::Ready {
            return;
        }
        if settled || grown {
            if settled {
                pending.growing = false;
            }
            pending.phase = Phase::Ready;
            self.lanes[lane(stat.size)].push_back(key.clone());
        } else {
            let mut at = pending.since + self.times.settle;
            if pending.growing {
                at = at.min(from + self.times.growing_interval).max(now + self.times.settle / 2);
            }
            self.due.push(Reverse((at, key.clone())));
        }
    }

    /// Asks for a look at a file that may not even be pending, at this time.
    pub fn look_at(&mut self, key: Key, at: Instant) {
        self.due.push(Reverse((at, key)));
    }

    /// When the next look is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// The next file whose look is due by now.
    pub fn pop_due(&mut self, now: Instant) -> Option<Key> {
        self.due.peek().filter(|Reverse((at, _))| *at <= now)?;
        self.due.pop().map(|Reverse((_, key))| key)
    }

    /// The next file of this lane that may go; it counts as being sent from now on.
    pub fn start(&mut self, lane: usize) -> Option<(Key, Pending)> {
        while let Some(key) = self.lanes[lane].pop_front() {
            let Some(pending) = self.files.get_mut(&key) else { continue };
            if pending.phase != Phase::Ready {
                continue;
            }
            let its_lane = self::lane(pending.stat.size);
            if its_lane != lane {
                // It grew, or shrank, while it waited for its turn.
                self.lanes[its_lane].push_back(key);
                continue;
            }
            if self.order.blocks(&key, pending.rank, pending.needs) {
                self.held.push_back(key);
                continue;
            }
            pending.phase = Phase::Sending { again: None };
            self.sending[lane] += 1;
            if pending.growing {
                self.sent_at.insert(key.clone(), pending.since);
            }
            return Some((key, pending.clone()));
        }
        None
    }

    /// A job ended: the file is no longer pending. Returns what was known of it, and the evidence of a later change.
    pub fn finish(&mut self, key: &Key) -> Option<(Pending, Option<Evidence>)> {
        let pending = self.remove(key)?;
        let again = if let Phase::Sending { again } = pending.phase { again } else { None };
        Some((pending, again))
    }

    /// Forgets a file, whatever it waits for.
    pub fn remove(&mut self, key: &Key) -> Option<Pending> {
        let pending = self.files.remove(key)?;
        self.bytes -= pending.stat.size;
        if matches!(pending.phase, Phase::Sending { .. }) {
            self.sending[lane(pending.stat.size)] -= 1;
        }
        if pending.ordered {
            self.order.end(key, pending.rank, pending.tick);
        }
        // What was held back may go now; a bounded number is asked each time, so that many don't cost a square.
        for _ in 0..self.held.len().min(64) {
            let Some(held) = self.held.pop_front() else { break };
            match self.files.get(&held) {
                Some(file) if file.phase == Phase::Ready && !self.order.blocks(&held, file.rank, file.needs) => {
                    self.lanes[lane(file.stat.size)].push_front(held);
                }
                Some(_) => self.held.push_back(held),
                None => {}
            }
        }
        Some(pending)
    }

    /// What is known of one file.
    pub fn get(&self, key: &str) -> Option<&Pending> {
        self.files.get(key)
    }

    /// Whether nothing is to be sent.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// How many wait or are sent, and their bytes together.
    pub fn count(&self) -> (u64, u64) {
        (self.files.len() as u64, self.bytes)
    }

    /// Bytes of all versions that were ever seen to differ from what was up.
    pub fn noticed_bytes(&self) -> u64 {
        self.noticed_bytes
    }

    /// How many of this lane are being sent.
    pub fn sending(&self, lane: usize) -> usize {
        self.sending[lane]
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Pending)> {
        self.files.iter()
    }

    /// The time at which the oldest of them was noticed, found out at most once a second.
    pub fn oldest(&mut self, now: Instant) -> Option<Instant> {
        if self.files.is_empty() {
            self.oldest = None;
        } else if self.oldest.is_none_or(|(asked, _)| now.duration_since(asked) >= Duration::from_secs(1)) {
            self.oldest = self.files.values().map(|pending| pending.noticed).min().map(|oldest| (now, oldest));
        }
        self.oldest.map(|(_, oldest)| oldest)
    }

    /// How long a file without an event takes to settle.
    pub fn settle(&self) -> Duration {
        self.times.settle
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const SETTLE: Duration = Duration::from_secs(2);
    const GROWING: Duration = Duration::from_secs(30);

    struct World {
        files: PendingFiles,
        start: Instant,
    }

    impl World {
        fn new() -> World {
            let times = Times { settle: SETTLE, growing_interval: GROWING };
            World { files: PendingFiles::new(times), start: clock::now() }
        }

        fn see(&mut self, name: &str, size: u64, evidence: Evidence, at_ms: u64) -> Option<Phase> {
            let key = Key::new(name).unwrap();
            let stat = Stat { size, ..Stat::default() };
            let rank = Rank::of(&key);
            let action = Action::Upload { stat, compare: false, rank };
            let now = self.start + Duration::from_millis(at_ms);
            self.files.see(&key, action, stat, rank, evidence, now, at_ms, None, false);
            self.files.get(name).map(|p| p.phase)
        }
    }

    #[test]
    fn closed_files_are_ready_and_seen_ones_need_two_looks() {
        let mut world = World::new();
        assert_eq!(world.see("a", 1, Evidence::Settled, 0), Some(Phase::Ready));
        assert_eq!(world.see("b", 1, Evidence::Seen, 0), Some(Phase::Unsettled));
        assert_eq!(world.files.next_due(), Some(world.start + SETTLE));
        assert_eq!(world.see("b", 1, Evidence::Seen, 1_999), Some(Phase::Unsettled));
        assert_eq!(world.see("b", 2, Evidence::Seen, 2_000), Some(Phase::Unsettled), "changed: from the start again");
        assert_eq!(world.see("b", 2, Evidence::Seen, 4_000), Some(Phase::Ready));
        assert_eq!(world.files.count(), (2, 3));
    }

    #[test]
    fn a_file_that_never_stops_growing_goes_up_at_intervals() {
        let mut world = World::new();
        for second in 0..30 {
            let phase = world.see("log", second, Evidence::Seen, second * 1_000);
            assert_eq!(phase, Some(Phase::Unsettled), "{second}");
        }
        assert_eq!(world.see("log", 31, Evidence::Seen, 30_000), Some(Phase::Ready));
        let (key, sent) = world.files.start(0).unwrap();
        assert!(sent.growing);
        assert_eq!(world.see("log", 32, Evidence::Seen, 31_000), Some(Phase::Sending { again: Some(Evidence::Seen) }));
        assert_eq!(world.files.finish(&key).unwrap().1, Some(Evidence::Seen), "it grew meanwhile");
        assert_eq!(world.see("log", 33, Evidence::Seen, 59_000), Some(Phase::Unsettled), "30 s after the last time");
        assert_eq!(world.see("log", 34, Evidence::Seen, 60_000), Some(Phase::Ready));
    }

    #[test]
    fn a_file_that_outgrows_its_lane_goes_in_the_other_one() {
        let mut world = World::new();
        world.see("log", 1, Evidence::Settled, 0);
        world.see("log", SMALL_BYTES + 1, Evidence::Settled, 1);
        assert!(world.files.start(0).is_none());
        let (key, _) = world.files.start(1).unwrap();
        assert_eq!((world.files.sending(0), world.files.sending(1)), (0, 1));
        world.files.finish(&key);
        assert_eq!((world.files.sending(0), world.files.sending(1)), (0, 0));
    }

    #[test]
    fn a_pointer_waits_for_unsettled_data_but_not_for_a_log() {
        let mut world = World::new();
        world.see("ckpt.data", 1, Evidence::Seen, 0);
        world.see("checkpoint", 1, Evidence::Settled, 1);
        assert!(world.files.start(0).is_none(), "the data has not settled");
        world.see("ckpt.data", 1, Evidence::Settled, 2);
        let (data, _) = world.files.start(0).unwrap();
        assert!(world.files.start(0).is_none(), "the data is on its way");
        world.files.finish(&data);
        assert_eq!(world.files.start(0).unwrap().0.as_str(), "checkpoint");

        world.files.finish(&Key::new("checkpoint").unwrap());
        // A pointer that is written again while it waits needs what was seen until then.
        world.see("next.data", 1, Evidence::Settled, 3);
        world.see("checkpoint", 1, Evidence::Settled, 4);
        world.see("last.data", 1, Evidence::Settled, 5);
        world.see("checkpoint", 2, Evidence::Settled, 6);
        let (next, last) = (world.files.start(0).unwrap().0, world.files.start(0).unwrap().0);
        assert!(world.files.start(0).is_none(), "both are on their way");
        world.files.finish(&next);
        assert!(world.files.start(0).is_none(), "the last data is on its way");
        world.files.finish(&last);
        assert_eq!(world.files.start(0).unwrap().0.as_str(), "checkpoint");

        world.see("log", 1, Evidence::Seen, 10);
        world.see("log", 2, Evidence::Seen, 11);
        world.see("latest", 1, Evidence::Settled, 12);
        assert_eq!(world.files.start(0).unwrap().0.as_str(), "latest");
    }
}
