//! Order: what must be up before a file may go. Pure.
//!
//! Invariant: an index waits for the data that was seen no later than itself, beside or below it; a pointer waits for both.
//! Nothing waits for what was seen after it: otherwise a busy directory would hold its pointer back for ever.

use std::collections::{BTreeMap, HashMap};

use crate::checkpoint::Rank;
use crate::key::Key;

/// The files that are not up yet, by directory, rank and the tick at which they were seen.
#[derive(Debug, Default)]
pub struct Order {
    directories: HashMap<Box<str>, [BTreeMap<u64, u32>; 2]>,
}

impl Order {
    /// A file that is to go up.
    pub fn begin(&mut self, key: &Key, rank: Rank, tick: u64) {
        let Some(slot) = slot(rank) else { return };
        for directory in directories(key) {
            if let Some(waiting) = self.directories.get_mut(directory) {
                *waiting[slot].entry(tick).or_default() += 1;
            } else {
                let mut waiting = <[BTreeMap<u64, u32>; 2]>::default();
                waiting[slot].insert(tick, 1);
                self.directories.insert(directory.into(), waiting);
            }
        }
    }

    /// A file that is up, or will not go: the same words as for [`Order::begin`].
    pub fn end(&mut self, key: &Key, rank: Rank, tick: u64) {
        let Some(slot) = slot(rank) else { return };
        for directory in directories(key) {
            let Some(waiting) = self.directories.get_mut(directory) else { continue };
            if let Some(count) = waiting[slot].get_mut(&tick) {
                *count -= 1;
                if *count == 0 {
                    waiting[slot].remove(&tick);
                }
            }
            if waiting.iter().all(BTreeMap::is_empty) {
                self.directories.remove(directory);
            }
        }
    }

    /// Whether something else must be up first.
    pub fn blocks(&self, key: &Key, rank: Rank, tick: u64) -> bool {
        let Some(waiting) = self.directories.get(key.directory()) else { return false };
        let earlier = |slot: usize| waiting[slot].first_key_value().is_some_and(|(first, _)| *first <= tick);
        match rank {
            Rank::Data => false,
            Rank::Index => earlier(0),
            Rank::Pointer => earlier(0) || earlier(1),
        }
    }
}

fn slot(rank: Rank) -> Option<usize> {
    match rank {
        Rank::Data => Some(0),
        Rank::Index => Some(1),
        Rank::Pointer => None,
    }
}

/// The directories that hold a key, from its own up to the root.
fn directories(key: &Key) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(key.directory()), |directory| {
        (!directory.is_empty()).then(|| directory.rsplit_once('/').map_or("", |(above, _)| above))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_then_index_then_pointer() {
        let key = |name: &str| Key::new(name).unwrap();
        let (data, index, pointer) = (key("run/ckpt/data"), key("run/ckpt-1.index"), key("run/checkpoint"));
        let mut order = Order::default();
        order.begin(&data, Rank::Data, 5);
        order.begin(&index, Rank::Index, 5);
        assert!(order.blocks(&index, Rank::Index, 5), "data below the index's directory is not up");
        assert!(order.blocks(&pointer, Rank::Pointer, 5));
        assert!(!order.blocks(&pointer, Rank::Pointer, 4), "what came later is not waited for");
        assert!(!order.blocks(&key("other/checkpoint"), Rank::Pointer, 9));
        order.end(&data, Rank::Data, 5);
        assert!(!order.blocks(&index, Rank::Index, 5));
        assert!(order.blocks(&pointer, Rank::Pointer, 5));
        order.end(&index, Rank::Index, 5);
        assert!(!order.blocks(&pointer, Rank::Pointer, 5));
        assert!(order.directories.is_empty(), "nothing stays behind");
    }
}
