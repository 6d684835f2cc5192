//! `chiefsync demo`: the whole story on this machine, told with the commands that a user would type.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;

use chiefsync::config::Destination;
use chiefsync::disk;
use chiefsync::exit::{Ending, ExitCode, Signal};
use chiefsync::store::{FixedCredentials, OpenOptions};

use super::screen::Screen;
use super::session::{Session, reach_for_reading};
use super::{Command, signals, table};

mod trainer;

/// The bucket, the prefix in it, and both as a user types them.
const BUCKET: &str = "demo";
const DESTINATION: &str = "s3://demo/my-job";

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
        let place = self
            .dir
            .clone()
            .unwrap_or_else(|| std::env::temp_dir().join(format!("chiefsync-demo-{}", std::process::id())));
        let place = std::path::absolute(&place).unwrap_or(place);
        let (output, s3) = (place.join("output"), place.join("s3"));
        if disk::metadata(&output).is_ok() {
            let what = format!("{} is there already", super::shown(&output));
            return Ending::usage(
                what,
                "let the demo begin afresh: name another directory with --dir, or remove this one",
            );
        }
        for directory in [&output, &s3] {
            if let Err(error) = disk::create_dir_all(directory) {
                let what = format!("{}: {error}", super::shown(directory));
                return Ending::usage(what, "name a directory that can be written with --dir");
            }
        }
        let server = match dev_s3::Server::spawn_thread(dev_s3::Options::directory(&s3).bucket(BUCKET)) {
            Ok(server) => server,
            Err(error) => return Ending::fault(format!("the embedded S3 server doesn't start: {error}")),
        };
        let options = OpenOptions {
            endpoint_url: Some(server.endpoint()),
            region: Some("us-east-1".to_owned()),
            credentials: Some(FixedCredentials {
                access_key_id: server.access_key().to_owned(),
                secret_access_key: server.secret_key().to_owned(),
                session_token: None,
            }),
            ..OpenOptions::default()
        };
        screen.line(&format!("An S3 server listens on {}; a trainer begins to write.", server.endpoint()));
        let ending = tell(screen, &output, &options);
        if ending.code == ExitCode::Proven {
            screen.line(&format!("\nThe trainer's files are in {}", super::shown(&output)));
            screen.line(&format!("The bucket's are in {}; remove both when you have seen enough.", super::shown(&s3)));
        }
        ending
    }
}

/// The story: each chapter is a command, and ends it if it fails.
fn tell(screen: &Screen, output: &Path, options: &OpenOptions) -> Ending {
    let stopped = match signals::listen(screen) {
        Ok(stopped) => stopped,
        Err(error) => return Ending::fault(format!("signals can't be heard: {error}")),
    };
    let directory = output.to_owned();
    let trainer = std::thread::spawn(move || trainer::train(&directory, || *stopped.borrow() != Signal::Run));

    let watch = ["watch", "--settle", "500ms", "--growing-interval", "2s", "--idle-deadline", "1m"];
    let ending = chapter(screen, &watch, Some(output), options);
    match trainer.join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Ending::fault(format!("the trainer can't write: {error}")),
        Err(_) => return Ending::fault("the trainer panicked"),
    }
    if ending.code != ExitCode::Proven {
        return ending;
    }
    screen.line(&format!("ok: {}", ending.summary));
    let ending = chapter(screen, &["verify", "--deep"], Some(output), options);
    if ending.code != ExitCode::Proven {
        return ending;
    }
    screen.line(&format!("ok: {}", ending.summary));
    let ending = chapter(screen, &["ls"], None, options);
    if ending.code != ExitCode::Proven {
        return ending;
    }
    let destination = Destination::parse(DESTINATION, &chiefsync::config::Placeholders::default(), false);
    let Ok(destination) = destination else { return Ending::fault("the demo's own destination is refused") };
    screen.line(&format!("\n$ aws s3 ls --recursive {DESTINATION}/"));
    let (options, metrics) = (options.clone(), screen.metrics().clone());
    Session::reading().run(screen, move |_, _| async move {
        let store = match reach_for_reading(&destination, &options, &metrics).await {
            Ok(store) => store,
            Err(ending) => return ending,
        };
        match table::print_objects(&store).await {
            Ok(()) => Ending::new(ExitCode::Proven, "every file is in the bucket, checked, and so is the proof"),
            Err(ending) => ending,
        }
    })
}

/// Shows a command line, parses it as if it had been typed, and runs it against the demo's server.
fn chapter(screen: &Screen, words: &[&str], source: Option<&Path>, options: &OpenOptions) -> Ending {
    let mut typed: Vec<OsString> = ["chiefsync"].iter().chain(words).map(OsString::from).collect();
    typed.extend(source.map(|source| source.as_os_str().to_owned()));
    typed.push(DESTINATION.into());
    let shown: Vec<_> = typed.iter().map(|word| super::shown(Path::new(word))).collect();
    screen.line(&format!("\n$ {}", shown.join(" ")));
    let options = options.clone();
    match super::try_parse(&typed).map(|cli| cli.command) {
        Ok(Command::Watch(command)) => command.run_with(screen, options),
        Ok(Command::Verify(command)) => command.run_with(screen, options),
        Ok(Command::Ls(command)) => command.run_with(screen, options),
        _ => Ending::fault("the demo's own command line is refused"),
    }
}
