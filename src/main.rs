//! The `chiefsync` program: parse, run, exit.
#![deny(missing_docs)]

mod cli;

fn main() -> std::process::ExitCode {
    match cli::parse(std::env::args_os()) {
        Ok(typed) => typed.run().into(),
        Err(shown) => shown,
    }
}
