//! The head: the one small object that changes meaning, by compare-and-swap.
