//! Buffers: the memory that parts travel in, bounded and used again.
//!
//! Invariant: buffers in use and buffers kept for the next part never hold more than the budget together. Giving memory
//! back to the kernel after each part would cost a third of the speed in page faults, so large buffers are kept.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::digest::MIN_PART_BYTES;

/// What a permit stands for, in bytes: fine enough for small files, coarse enough for a semaphore's counter.
const UNIT_BYTES: u64 = 64 * 1024;

/// A budget of bytes for parts on their way.
#[derive(Clone)]
pub struct Buffers {
    units: Arc<Semaphore>,
    total_units: u32,
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// One part's memory.
pub struct Buffer {
    bytes: Vec<u8>,
    len: usize,
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
    _permit: OwnedSemaphorePermit,
}

impl Buffers {
    /// Buffers of `budget_bytes` together.
    pub fn new(budget_bytes: u64) -> Buffers {
        let total_units = u32::try_from(budget_bytes / UNIT_BYTES).unwrap_or(u32::MAX >> 4).max(1);
        Buffers { units: Arc::new(Semaphore::new(total_units as usize)), total_units, kept: Arc::default() }
    }

    /// What a process with `memory_bytes` in all can spend on parts: the rest is the program, its connections and the
    /// names of what it carries.
    pub fn budget_bytes(memory_bytes: u64) -> u64 {
        const PROGRAM_BYTES: u64 = 24 * 1024 * 1024;
        let spare = memory_bytes.saturating_sub(PROGRAM_BYTES) / 8 * 7;
        // Whole parts of the usual size, where there is room for one.
        if spare >= MIN_PART_BYTES { spare / MIN_PART_BYTES * MIN_PART_BYTES } else { spare.max(1024 * 1024) }
    }

    /// Whether a buffer of this size fits at all; a larger part is streamed.
    pub fn fits(&self, len_bytes: u64) -> bool {
        len_bytes.div_ceil(UNIT_BYTES) <= u64::from(self.total_units)
    }

    /// A buffer of `len_bytes`, when there is room for it: first come, first served, so that no file starves another.
    ///
    /// # Panics
    /// When it doesn't [fit](Buffers::fits).
    pub async fn take(&self, len_bytes: u64) -> Buffer {
        let units = u32::try_from(len_bytes.div_ceil(UNIT_BYTES)).expect("a buffer that fits");
        let permit = Arc::clone(&self.units).acquire_many_owned(units).await.expect("the semaphore is never closed");
        let len = usize::try_from(len_bytes).expect("a buffer that fits in memory");
        let mut kept = self.kept.lock().expect("no panic while buffers are held");
        let again = if len_bytes < MIN_PART_BYTES { None } else { kept.iter().position(|b| b.len() >= len) };
        let bytes = if let Some(at) = again {
            kept.swap_remove(at)
        } else {
            // What is kept for later must not come on top of what is used now.
            let mut spare_bytes = self.units.available_permits() as u64 * UNIT_BYTES;
            kept.retain(|b| {
                let fits = b.len() as u64 <= spare_bytes;
                spare_bytes -= if fits { b.len() as u64 } else { 0 };
                fits
            });
            vec![0; len]
        };
        Buffer { bytes, len, kept: Arc::clone(&self.kept), _permit: permit }
    }
}

impl Buffer {
    /// The bytes to fill.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    /// The bytes to send; the buffer comes back when the last reader is done.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes.len() as u64 >= MIN_PART_BYTES {
            self.kept.lock().expect("no panic while buffers are held").push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[tokio::test]
    async fn buffers_stay_within_the_budget_and_come_back() {
        let buffers = Buffers::new(16 * MIB);
        assert!(buffers.fits(16 * MIB) && !buffers.fits(16 * MIB + 1));
        let first = buffers.take(8 * MIB).await;
        let second = buffers.take(8 * MIB).await.into_bytes();
        let address = second.as_ptr();
        assert_eq!(buffers.units.available_permits(), 0);
        drop(second);
        assert_eq!(buffers.take(8 * MIB).await.as_ref().as_ptr(), address, "a large buffer is used again");
        drop(first);
        let many = buffers.take(9 * MIB).await;
        assert!(buffers.kept.lock().unwrap().iter().map(|b| b.len() as u64).sum::<u64>() <= 7 * MIB);
        drop(many);
    }

    #[test]
    fn the_budget_leaves_room_for_the_program() {
        assert_eq!(Buffers::budget_bytes(64 * MIB), 32 * MIB);
        assert_eq!(Buffers::budget_bytes(16 * MIB), MIB);
        assert_eq!(Buffers::budget_bytes(512 * MIB) % (8 * MIB), 0);
    }
}
