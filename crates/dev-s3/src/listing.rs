//! Pages of a listing, computed purely from the sorted keys.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use std::collections::BTreeMap;
use std::ops::Bound;

/// What one request asks of a listing.
#[derive(Debug, Default)]
pub(crate) struct Query<'a> {
    pub prefix: &'a str,
    pub delimiter: &'a str,
    /// Where the page before ended.
    pub after: Option<Position>,
    pub limit: usize,
}

/// The last thing that a page showed; its text form is the continuation token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    Key(String),
    /// Everything below a common prefix has been said.
    CommonPrefix(String),
}

impl Position {
    pub fn token(&self) -> String {
        let text = match self {
            Position::Key(key) => format!("k{key}"),
            Position::CommonPrefix(prefix) => format!("p{prefix}"),
        };
        URL_SAFE_NO_PAD.encode(text)
    }

    pub fn parse(token: &str) -> Option<Position> {
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        match text.split_at_checked(1)? {
            ("k", key) => Some(Position::Key(key.into())),
            ("p", prefix) => Some(Position::CommonPrefix(prefix.into())),
            _ => None,
        }
    }

    fn covers(&self, key: &str) -> bool {
        match self {
            Position::Key(last) => key <= last.as_str(),
            Position::CommonPrefix(prefix) => key <= prefix.as_str() || key.starts_with(prefix.as_str()),
        }
    }

    pub fn text(&self) -> &str {
        match self {
            Position::Key(text) | Position::CommonPrefix(text) => text,
        }
    }
}

/// One page: at most `limit` keys and common prefixes together.
#[derive(Debug)]
pub(crate) struct Page<'a, T> {
    pub entries: Vec<(&'a str, &'a T)>,
    pub common_prefixes: Vec<String>,
    /// Where the next page starts, if there is one.
    pub next: Option<Position>,
}

pub(crate) fn page<'a, T>(objects: &'a BTreeMap<String, T>, query: &Query<'_>) -> Page<'a, T> {
    let mut page = Page { entries: Vec::new(), common_prefixes: Vec::new(), next: None };
    let mut last = query.after.clone();
    let mut taken = 0;
    if query.limit == 0 {
        return page;
    }
    let after = query.after.as_ref().map_or("", Position::text);
    let start = if after > query.prefix { Bound::Included(after) } else { Bound::Included(query.prefix) };
    for (key, object) in objects.range::<str, _>((start, Bound::Unbounded)) {
        if !key.starts_with(query.prefix) {
            break;
        }
        if last.as_ref().is_some_and(|last| last.covers(key)) {
            continue;
        }
        if taken == query.limit {
            page.next = last;
            break;
        }
        taken += 1;
        match common_prefix(key, query) {
            Some(prefix) => {
                last = Some(Position::CommonPrefix(prefix.to_owned()));
                page.common_prefixes.push(prefix.to_owned());
            }
            None => {
                last = Some(Position::Key(key.clone()));
                page.entries.push((key, object));
            }
        }
    }
    page
}

fn common_prefix<'k>(key: &'k str, query: &Query<'_>) -> Option<&'k str> {
    if query.delimiter.is_empty() {
        return None;
    }
    let rest = &key[query.prefix.len()..];
    let end = rest.find(query.delimiter)? + query.delimiter.len();
    Some(&key[..query.prefix.len() + end])
}

/// What S3 does to names under `encoding-type=url`: form encoding that leaves the slash alone.
pub(crate) fn url_encode(name: &str) -> String {
    const KEPT: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'*').remove(b' ');
    percent_encode(name.as_bytes(), KEPT).to_string().replace(' ', "+")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(names: &[&str]) -> BTreeMap<String, ()> {
        names.iter().map(|name| ((*name).to_owned(), ())).collect()
    }

    /// All pages, as (keys, prefixes) in order.
    fn walk(
        objects: &BTreeMap<String, ()>,
        prefix: &str,
        delimiter: &str,
        limit: usize,
    ) -> Vec<(Vec<String>, Vec<String>)> {
        let mut after = None;
        let mut pages = Vec::new();
        loop {
            let page = page(objects, &Query { prefix, delimiter, after, limit });
            pages.push((page.entries.iter().map(|(key, ())| (*key).to_owned()).collect(), page.common_prefixes));
            let Some(next) = page.next else { return pages };
            assert_eq!(Position::parse(&next.token()), Some(next.clone()));
            after = Some(next);
        }
    }

    #[test]
    fn pages_cover_everything_once() {
        let objects = keys(&["a", "b", "c", "d", "e"]);
        for limit in 1..7 {
            let pages = walk(&objects, "", "", limit);
            assert_eq!(pages.len(), 5usize.div_ceil(limit), "limit {limit}");
            let all: Vec<_> = pages.into_iter().flat_map(|(keys, _)| keys).collect();
            assert_eq!(all, ["a", "b", "c", "d", "e"]);
        }
    }

    #[test]
    fn prefixes_do_not_leak_into_their_neighbours() {
        let objects = keys(&["job-2/a", "job/a", "job/b", "joc"]);
        assert_eq!(walk(&objects, "job/", "", 10), [(vec!["job/a".into(), "job/b".into()], vec![])]);
    }

    #[test]
    fn common_prefixes_count_and_are_said_once() {
        let objects = keys(&["x/1", "x/2", "x/3", "y", "z/1"]);
        let page: (Vec<String>, Vec<String>) = (vec!["y".into()], vec!["x/".into(), "z/".into()]);
        assert_eq!(walk(&objects, "", "/", 10), [page]);
        let pages = walk(&objects, "", "/", 1);
        assert_eq!(pages.len(), 3);
        assert_eq!(pages[0], (vec![], vec!["x/".into()]));
        assert_eq!(pages[1], (vec!["y".into()], vec![]));
        assert_eq!(pages[2], (vec![], vec!["z/".into()]));
    }

    #[test]
    fn starting_in_the_middle() {
        let objects = keys(&["a/1", "a/2", "b"]);
        let query = Query { after: Some(Position::Key("a/1".into())), limit: 10, ..Query::default() };
        let found: Vec<_> = page(&objects, &query).entries.into_iter().map(|(key, ())| key).collect();
        assert_eq!(found, ["a/2", "b"]);
    }

    #[test]
    fn names_are_form_encoded() {
        assert_eq!(url_encode("a/b c+d~é\n%*._-"), "a/b+c%2Bd%7E%C3%A9%0A%25*._-");
    }
}
