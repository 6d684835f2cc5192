//! The program: says where it listens, and ends when told.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

fn run(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dev-s3"));
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

#[test]
fn it_prints_one_line_and_serves_until_terminated() {
    let mut child = run(&["--bucket", "first", "--bucket", "second", "--discard"]);
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    let address = line.trim_end().strip_prefix("listening on http://").expect("the address");
    std::net::TcpStream::connect(address).expect("it listens");
    let killed = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    assert!(child.wait().expect("it ends").success());
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("the rest");
    assert_eq!(rest, "");
}

#[test]
fn wrong_words_are_said_to_be_wrong() {
    for (args, problem) in [
        (&["--bogus"][..], "--bogus is unknown"),
        (&["--bucket"], "--bucket needs a value"),
        (&["--memory", "--discard"], "exclude each other"),
        (&["--keep", "x"], "--keep needs --discard"),
        (&["--addr", "nowhere"], "--addr needs HOST:PORT"),
        (&["--access-key", "a"], "go together"),
    ] {
        let output = run(args).wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(problem), "{args:?}");
    }
    let named = run(&["--bucket", "Not A Name"]).wait_with_output().expect("it ends");
    assert_eq!(named.status.code(), Some(1));
}
