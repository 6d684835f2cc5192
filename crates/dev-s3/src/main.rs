//! `dev-s3`: the server as a program. Prints where it listens and serves until it is told to stop.

use dev_s3::{Medium, Options, Server};
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "\
usage: dev-s3 [--addr HOST:PORT] [--bucket NAME]... [--memory | --dir DIR | --discard [--keep TEXT]...]
              [--access-key KEY --secret-key SECRET]

  --addr HOST:PORT   listen here; the default 127.0.0.1:0 takes a free port
  --bucket NAME      make this bucket; may be repeated
  --memory           keep objects in memory (the default)
  --dir DIR          keep objects in DIR/BUCKET/KEY; they survive a restart
  --discard          keep sizes only and verify nothing: for measuring clients
  --keep TEXT        with --discard, keep objects whose key contains TEXT (default: .chiefsync/)
  --access-key KEY   the access key to accept (default: dev-s3)
  --secret-key KEY   the secret key to accept (default: dev-s3-secret)
";

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            eprint!("dev-s3: {problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match serve(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dev-s3: {error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn serve(options: Options) -> std::io::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let server = Server::start(options).await?;
    println!("listening on {}", server.endpoint());
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    server.stop();
    server.stopped().await;
    Ok(())
}

/// What was typed, as options; nothing where help was asked for.
fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let mut address = None;
    let mut buckets = Vec::new();
    let mut medium = None;
    let mut keep = Vec::new();
    let (mut access_key, mut secret_key) = (None, None);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--help" | "-h" => return Ok(None),
            "--addr" => address = Some(value()?.parse().map_err(|_| "--addr needs HOST:PORT, as numbers")?),
            "--bucket" => buckets.push(value()?),
            "--access-key" => access_key = Some(value()?),
            "--secret-key" => secret_key = Some(value()?),
            "--keep" => keep.push(value()?),
            "--memory" => choose(&mut medium, Medium::Memory)?,
            "--discard" => choose(&mut medium, Medium::discard())?,
            "--dir" => choose(&mut medium, Medium::Directory(value()?.into()))?,
            other => return Err(format!("{other} is unknown")),
        }
    }
    let medium = match (medium.unwrap_or_default(), keep.is_empty()) {
        (medium, true) => medium,
        (Medium::Discard { .. }, false) => Medium::Discard { keep },
        (_, false) => return Err("--keep needs --discard".into()),
    };
    let mut options = Options::new(medium);
    if let Some(address) = address {
        options = options.address(address);
    }
    match (access_key, secret_key) {
        (Some(access), Some(secret)) => options = options.keys(access, secret),
        (None, None) => {}
        _ => return Err("--access-key and --secret-key go together".into()),
    }
    Ok(Some(buckets.into_iter().fold(options, Options::bucket)))
}

fn choose(medium: &mut Option<Medium>, chosen: Medium) -> Result<(), String> {
    match medium.replace(chosen) {
        None => Ok(()),
        Some(_) => Err("--memory, --dir and --discard exclude each other".into()),
    }
}
