//! The one place where an outcome becomes an exit code and a hint.
