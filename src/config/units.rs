//! Sizes and times as people type them.

use bytesize::ByteSize;

use crate::clock::Duration;
use crate::exit::UsageError;

/// `64MiB`, `64Mi`, `1.5 GB`; a number alone counts bytes.
///
/// # Errors
/// What was typed, and how it is written.
pub fn parse_size(text: &str) -> Result<u64, UsageError> {
    let size = text
        .trim()
        .parse::<ByteSize>()
        .map_err(|_| UsageError::new(format!("{text:?} is no size"), "write a number and a unit: 64MiB, 512Mi, 1GB"))?;
    Ok(size.as_u64())
}

/// `500ms`, `2s`, `10m`, `1h30m`, `1.5h`, `2d`; a number alone counts seconds.
///
/// # Errors
/// What was typed, and how it is written.
pub fn parse_duration(text: &str) -> Result<Duration, UsageError> {
    let wrong =
        || UsageError::new(format!("{text:?} is no time span"), "write numbers and units: 500ms, 2s, 10m, 1h30m");
    let mut rest = text.trim();
    if let Ok(seconds) = rest.parse::<u64>() {
        return Ok(Duration::from_secs(seconds));
    }
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let unit_seconds = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return Err(wrong()),
        };
        let number = number.parse::<f64>().map_err(|_| wrong())?;
        let part = Duration::try_from_secs_f64(number * unit_seconds).map_err(|_| wrong())?;
        sum = sum.checked_add(part).ok_or_else(wrong)?;
        rest = tail.trim_start();
    }
    Ok(sum)
}

/// A size for people: `64 MiB`, `1.5 GiB`, `17 B`.
pub fn show_size(bytes: u64) -> String {
    let text = ByteSize::b(bytes).display().iec().to_string();
    text.replace(".0 ", " ")
}

/// A time span for people, down to what matters: `7 ms`, `2.5 s`, `10 m`, `1 h 30 m`.
pub fn show_duration(span: Duration) -> String {
    let seconds = span.as_secs();
    let two = |large: u64, large_unit: &str, small: u64, small_unit: &str| {
        if small == 0 { format!("{large} {large_unit}") } else { format!("{large} {large_unit} {small} {small_unit}") }
    };
    match seconds {
        0 => format!("{} ms", span.as_millis()),
        1..60 => format!("{:.1} s", span.as_secs_f64()).replace(".0 ", " "),
        60..3600 => two(seconds / 60, "m", seconds % 60, "s"),
        3600..86400 => two(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => two(seconds / 86400, "d", seconds % 86400 / 3600, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_type_them() {
        for (text, bytes) in [
            ("64MiB", 64 << 20),
            ("64Mi", 64 << 20),
            ("64 MiB", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("1GB", 1_000_000_000),
            ("17", 17),
            ("17B", 17),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "MiB", "64 apples", "-1MiB", "x"] {
            let error = parse_size(text).unwrap_err();
            assert!(error.message.contains(&format!("{text:?}")) && error.hint.unwrap().contains("64MiB"));
        }
    }

    #[test]
    fn times_as_people_type_them() {
        for (text, ms) in [
            ("2s", 2_000),
            ("500ms", 500),
            ("10m", 600_000),
            ("10min", 600_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("1.5h", 5_400_000),
            ("2d", 172_800_000),
            ("0s", 0),
            ("30", 30_000),
        ] {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for text in ["", "s", "2x", "-2s", "2s!", "1e400h", "1.2.3s", "9999999999999999999999h", "2s3"] {
            let error = parse_duration(text).unwrap_err();
            assert!(error.message.contains(&format!("{text:?}")) && error.hint.unwrap().contains("1h30m"), "{text}");
        }
    }

    #[test]
    fn what_is_shown_is_short() {
        assert_eq!(
            [show_size(0), show_size(1023), show_size(64 << 20), show_size(3 << 29)],
            ["0 B", "1023 B", "64 MiB", "1.5 GiB"]
        );
        let spans = [7, 2_000, 2_500, 600_000, 605_000, 5_400_000, 90_000_000];
        let shown = spans.map(|ms| show_duration(Duration::from_millis(ms)));
        assert_eq!(shown, ["7 ms", "2 s", "2.5 s", "10 m", "10 m 5 s", "1 h 30 m", "1 d 1 h"]);
    }
}
