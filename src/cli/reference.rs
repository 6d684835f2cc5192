//! docs/REFERENCE.md, made from the definitions: what stands there can't drift.
//!
//! `CHIEFSYNC_BLESS=1 cargo test --bin chiefsync reference` writes it; without the variable the test compares.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, ArgAction};

use chiefsync::disk;
use chiefsync::exit::ExitCode;
use chiefsync::metrics::Metrics;

const INTRODUCTION: &str = "# Reference

Flags, variables, exit codes and metrics, as the program defines them. This file is generated; a test fails when it is
stale. Change the definitions, then run `CHIEFSYNC_BLESS=1 cargo test --bin chiefsync reference`.

Every flag has a variable; what is typed wins, and a variable that is set to nothing counts as not set. Times are typed
as `500ms`, `2s`, `10m`, `1h30m` (a number alone counts seconds), sizes as `64MiB`, `512Mi`, `1GB` (a number alone counts
bytes). A variable that switches something on takes `true` or `1`, and `false` or `0`. Where the bucket is and who may
write to it is told to the AWS SDK in its own way: `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_PROFILE`, keys, IRSA, Pod
Identity, instance roles. Colors follow `NO_COLOR`, `CLICOLOR` and `CLICOLOR_FORCE`.
";

fn reference() -> String {
    let mut text = INTRODUCTION.to_owned();
    commands(&mut text);
    exit_codes(&mut text);
    metrics(&mut text);
    text
}

fn commands(text: &mut String) {
    let mut root = super::command();
    root.build();
    let globals: Vec<&Arg> = root.get_arguments().filter(|argument| argument.is_global_set()).collect();
    text.push_str("\n## Every command\n");
    flags(text, &globals);
    for command in root.get_subcommands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let usage = command.clone().render_usage().to_string();
        let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
        let _ = write!(text, "\n## {}\n\n{about}.\n\n    {usage}\n", command.get_name());
        let own = |argument: &&Arg| {
            !argument.is_global_set() && !matches!(argument.get_action(), ArgAction::Help | ArgAction::HelpLong)
        };
        let mut groups: BTreeMap<&str, Vec<&Arg>> = BTreeMap::new();
        let mut order = Vec::new();
        for argument in command.get_arguments().filter(own) {
            let group = argument.get_help_heading().unwrap_or_default();
            if !order.contains(&group) {
                order.push(group);
            }
            groups.entry(group).or_default().push(argument);
        }
        // What has no heading of its own comes first.
        order.sort_by_key(|group| !group.is_empty());
        for group in order {
            if !group.is_empty() {
                let _ = write!(text, "\n### {group}\n");
            }
            flags(text, &groups[group]);
        }
    }
}

fn flags(text: &mut String, arguments: &[&Arg]) {
    text.push_str("\n| flag | variable | default | meaning |\n| --- | --- | --- | --- |\n");
    for argument in arguments {
        let variable = argument.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
        let defaults = if argument.get_action().takes_values() { argument.get_default_values() } else { &[] };
        let default = defaults.first().map(|value| format!("`{}`", value.to_string_lossy())).unwrap_or_default();
        let mut help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        if argument.get_action().takes_values() {
            for value in argument.get_possible_values() {
                let meaning = value.get_help().map(ToString::to_string).unwrap_or_default();
                let _ = write!(help, "<br>`{}`: {meaning}", value.get_name());
            }
        }
        let _ = writeln!(text, "| {} | {variable} | {default} | {} |", name(argument), cell(&help));
    }
}

/// How it is typed.
fn name(argument: &Arg) -> String {
    let value = argument.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    let Some(long) = argument.get_long() else { return format!("`{}`", value.unwrap_or_default()) };
    let short = argument.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
    match value.filter(|_| argument.get_action().takes_values()) {
        Some(value) => format!("{short}`--{long} {value}`"),
        None => format!("{short}`--{long}`"),
    }
}

fn exit_codes(text: &mut String) {
    text.push_str("\n## Exit codes\n\n| code | means |\n| --- | --- |\n");
    for code in ExitCode::ALL {
        let _ = writeln!(text, "| {} | {} |", code.number(), code.meaning());
    }
}

fn metrics(text: &mut String) {
    text.push_str(
        "\n## Metrics\n\nServed at `/metrics` under `--metrics-addr`, as OpenMetrics text. `/healthz` beside it answers \
         200 while there is progress, and 503 after 5 minutes without any; an outage of the store that is being retried \
         is progress.\n\n| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n",
    );
    let metrics = Metrics::new();
    // What is counted by reason shows its label once there is one.
    metrics.retry("reason");
    metrics.rescans("reason");
    let exposition = metrics.exposition();
    for line in exposition.lines() {
        let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) else { continue };
        let kind = exposition.lines().find_map(|line| line.strip_prefix(&format!("# TYPE {name} "))).unwrap();
        let shown = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
        let labels = exposition.lines().find_map(|line| {
            let label = line.strip_prefix(&shown)?.strip_prefix('{')?.split_once('=')?.0;
            Some(format!("`{label}`"))
        });
        let _ = writeln!(text, "| `{shown}` | {kind} | {} | {} |", labels.unwrap_or_default(), cell(help));
    }
}

/// Help as it fits into a table's cell.
fn cell(help: &str) -> String {
    help.replace('|', "\\|").replace('\n', " ")
}

/// Flags, variables, exit codes and metrics in docs/ are those of the program.
#[test]
fn the_reference_is_true() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/REFERENCE.md");
    let now = reference();
    if std::env::var_os("CHIEFSYNC_BLESS").is_some() {
        disk::create_dir_all(path.parent().unwrap()).unwrap();
        disk::write_atomically(&path, now.as_bytes()).unwrap();
    }
    let written = disk::read_small(&path, 1 << 20).map(|bytes| String::from_utf8(bytes).unwrap()).unwrap_or_default();
    assert!(
        written == now,
        "docs/REFERENCE.md is stale: run `CHIEFSYNC_BLESS=1 cargo test --bin chiefsync reference` and commit it"
    );
}

/// Every flag has a variable, every variable begins alike, and every flag is explained.
#[test]
fn every_flag_has_a_variable_and_a_sentence() {
    let root = super::command();
    for command in root.get_subcommands().chain([&root]) {
        for argument in command.get_arguments() {
            let what = format!("{} {}", command.get_name(), argument.get_id());
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(!help.is_empty(), "{what} is not explained");
            if let Some(long) = argument.get_long() {
                let variable = argument.get_env().unwrap_or_default().to_string_lossy();
                let short = format!("CHIEFSYNC_{}", long.to_uppercase().replace('-', "_"));
                let long = format!("CHIEFSYNC_{}_{}", command.get_name().to_uppercase(), &short["CHIEFSYNC_".len()..]);
                assert!(variable == short || variable == long, "{what} has the variable {variable:?}");
            }
        }
    }
}
