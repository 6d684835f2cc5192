//! Inventory: everything that a prefix holds, listed in parallel ranges.
//!
//! Invariant: the ranges cover all names, whatever the guesses at their borders were worth; every object comes out once.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{ListFrom, Listed, Page, SharedStore, StoreError};

/// Below this many names one page after the other is as fast: MinIO walks from the front for each range.
const WORTH_SPLITTING: usize = 15_000;

/// How many ranges are listed at a time.
const RANGES: usize = 4;

/// Lists everything; `known` are names that are expected, sorted, from which the ranges' borders are taken.
///
/// # Errors
/// The first that a range ended with.
pub async fn inventory(
    store: &SharedStore,
    known: &[&str],
    mut each: impl FnMut(Listed),
) -> Result<Vec<String>, StoreError> {
    let borders: Vec<String> = if known.len() < WORTH_SPLITTING {
        Vec::new()
    } else {
        (1..RANGES).map(|range| known[known.len() * range / RANGES].to_owned()).collect()
    };
    let (sender, mut pages) = mpsc::channel::<Page>(RANGES);
    let mut ranges = JoinSet::new();
    for index in 0..=borders.len() {
        let (store, sender) = (Arc::clone(store), sender.clone());
        let after = index.checked_sub(1).map(|before| borders[before].clone());
        let last = borders.get(index).cloned();
        ranges.spawn(list_range(store, after, last, sender));
    }
    drop(sender);
    let mut foreign = Vec::new();
    while let Some(page) = pages.recv().await {
        page.objects.into_iter().for_each(&mut each);
        foreign.extend(page.foreign);
    }
    while let Some(ended) = ranges.join_next().await {
        ended.unwrap_or_else(|e| {
            Err(StoreError::new(super::ErrorKind::Refused, "ListObjectsV2", "", format!("ended early: {e}")))
        })?;
    }
    Ok(foreign)
}

/// What a listing shows other than it should.
#[derive(Debug)]
pub struct Difference {
    /// Of the name that was expected.
    pub index: usize,
    /// What is there instead; `None`: nothing.
    pub listed: Option<Listed>,
}

/// Compares a listing with the `names` (sorted) that are expected: `is_same` says of each, by its index, whether the object
/// is what it should be, and `other` gets what nobody expects. With `in_ranges` the prefix is listed in parallel; a
/// difference counts only if a listing from front to back shows it, too. Returns the differences, by index, and the names
/// that are no keys.
///
/// # Errors
/// The first that a range ended with.
pub async fn compare_listing(
    store: &SharedStore,
    names: &[&str],
    in_ranges: bool,
    is_same: impl Fn(usize, &Listed) -> bool,
    mut other: impl FnMut(Listed),
) -> Result<(Vec<Difference>, Vec<String>), StoreError> {
    let index: HashMap<&str, usize> = names.iter().enumerate().map(|(at, name)| (*name, at)).collect();
    let mut matched = vec![false; names.len()];
    let mut instead: HashMap<usize, Listed> = HashMap::new();
    let foreign =
        inventory(store, if in_ranges { names } else { &[] }, |listed| match index.get(listed.key.as_str()) {
            Some(&at) if is_same(at, &listed) => matched[at] = true,
            Some(&at) => drop(instead.insert(at, listed)),
            None => other(listed),
        })
        .await?;
    let unmatched = matched.iter().enumerate().filter(|(_, matched)| !**matched);
    let differences = unmatched.map(|(index, _)| Difference { index, listed: instead.remove(&index) }).collect();
    Ok((differences, foreign))
}

/// Lists the names after `after`, up to and with `last`.
async fn list_range(
    store: SharedStore,
    after: Option<String>,
    last: Option<String>,
    pages: mpsc::Sender<Page>,
) -> Result<(), StoreError> {
    let mut from = ListFrom { after, ..ListFrom::default() };
    loop {
        let mut page = store.list(&from).await?;
        let mut next = page.next.take();
        if let Some(last) = &last {
            // Stores list in the order of bytes; one that doesn't would only make the ranges overlap or end late, so a
            // range ends at the first page whose last name lies beyond its border.
            let beyond = page.objects.last().is_some_and(|object| object.key.as_str() > last.as_str())
                || page.foreign.last().is_some_and(|name| name > last);
            page.objects.retain(|object| object.key.as_str() <= last.as_str());
            page.foreign.retain(|name| name <= last);
            if beyond {
                next = None;
            }
        }
        if pages.send(page).await.is_err() {
            return Ok(());
        }
        match next {
            Some(token) => from.token = Some(token),
            None => return Ok(()),
        }
    }
}
