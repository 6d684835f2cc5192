//! The server as its clients see it: through the AWS SDK, and through a bare socket where the SDK is too polite.

mod client;
mod conditions;
mod directory;
mod discard;
mod faults;
mod integrity;
mod listings;
mod multipart;
mod objects;
mod program;
