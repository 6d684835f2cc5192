//! Results on stdout: for people as columns that stand below each other, for programs as JSON.

use std::io::{self, Write};

use serde::Serialize;

use chiefsync::config::show_size;
use chiefsync::exit::{Ending, one_line};
use chiefsync::store::{ListFrom, SharedStore};

/// Rows of text, as wide as their widest cell; the last column is as wide as it wants.
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Columns of numbers are aligned to the right.
    numbers: Vec<usize>,
}

impl Table {
    /// A table with these headings.
    pub fn new(headings: &[&str]) -> Table {
        Table { rows: vec![headings.iter().map(|&heading| heading.to_owned()).collect()], numbers: Vec::new() }
    }

    /// The same with these columns (from 0) aligned to the right.
    pub fn right(mut self, columns: &[usize]) -> Table {
        columns.clone_into(&mut self.numbers);
        self
    }

    /// Adds a row: one cell a heading. A name with control characters stays on its line.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| one_line(&cell)).collect());
    }

    /// Prints it.
    ///
    /// # Errors
    /// The stream's own; a reader that went away is none.
    pub fn print(&self, to: &mut impl Write) -> io::Result<()> {
        let columns = self.rows[0].len();
        let cell_width = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| width(cell));
        let widths: Vec<_> =
            (0..columns).map(|column| self.rows.iter().map(|row| cell_width(row, column)).max().unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            for (column, cell) in row.iter().enumerate() {
                let padding = " ".repeat(widths.get(column).map_or(0, |widest| widest - width(cell)));
                match (self.numbers.contains(&column), column + 1 == columns) {
                    (true, _) => text.extend([&padding, cell.as_str()]),
                    (false, true) => text += cell,
                    (false, false) => text.extend([cell.as_str(), &padding]),
                }
                text += if column + 1 == columns { "\n" } else { "  " };
            }
        }
        print_text(to, &text)
    }
}

/// Prints a result for programs.
///
/// # Errors
/// The stream's own; a reader that went away is none.
pub fn print_json(to: &mut impl Write, result: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string_pretty(result)? + "\n";
    print_text(to, &text)
}

/// The same on one line.
///
/// # Errors
/// As for [`print_json`].
pub fn print_json_line(to: &mut impl Write, result: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string(result)? + "\n";
    print_text(to, &text)
}

/// Prints lines.
///
/// # Errors
/// The stream's own; a reader that went away is none.
pub fn print_text(to: &mut impl Write, text: &str) -> io::Result<()> {
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Prints every object's size and key, as `aws s3 ls --recursive` does.
///
/// # Errors
/// How to end when the store can't list.
pub async fn print_objects(store: &SharedStore) -> Result<(), Ending> {
    let mut table = Table::new(&["SIZE", "KEY"]).right(&[0]);
    let mut from = ListFrom::default();
    loop {
        let page = store.list(&from).await.map_err(|error| Ending::from_store_error(&error))?;
        for object in page.objects {
            table.row([show_size(object.size_bytes), object.key.to_string()]);
        }
        from.token = page.next;
        if from.token.is_none() {
            break;
        }
    }
    table.print(&mut io::stdout().lock()).map_err(|error| Ending::fault(format!("stdout: {error}")))
}

fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let mut table = Table::new(&["STATE", "SIZE", "PATH"]).right(&[1]);
        table.row(["match", "1.5 GiB", "a"].map(str::to_owned));
        table.row(["missing remotely", "7 B", "äö\n"].map(str::to_owned));
        let mut text = Vec::new();
        table.print(&mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "STATE                SIZE  PATH\n\
             match             1.5 GiB  a\n\
             missing remotely      7 B  äö\\n\n"
        );
    }
}
