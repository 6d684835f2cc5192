//! What is counted while it happens: the numbers behind `/metrics`, the live view and the manifest.
