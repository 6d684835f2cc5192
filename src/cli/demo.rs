//! `chiefsync demo`: the whole story on this machine.

use std::path::PathBuf;

use clap::Args;

use chiefsync::exit::Ending;

use super::screen::Screen;

/// The whole story on this machine: embedded S3, a sample trainer, the sidecar, the proof.
#[derive(Debug, Args)]
pub struct Demo {
    /// Where it works; a new directory below the system's temporary one, if not given.
    #[arg(long, value_name = "DIR", env = "CHIEFSYNC_DEMO_DIR")]
    dir: Option<PathBuf>,
}

impl Demo {
    /// Tells it.
    pub fn run(&self, screen: &Screen) -> Ending {
        let _ = screen;
        Ending::fault("this build has no engine")
    }
}
