//! End markers: DONE and FAILED in SRC's root.
