//! Released formats load for ever, and mean what they meant.

#![allow(clippy::unwrap_used, reason = "a test's helper may fail as the test itself does")]

use std::fs;

use cluster_tests::fixture;

#[test]
fn the_store_of_0_1_restores_to_the_books_it_was() {
    let dir = fixture::dir("0.1");
    // A copy: opening a store writes to it.
    let scratch = tempfile::tempdir().unwrap();
    let copy = scratch.path().join("store.redb");
    fs::copy(dir.join("store.redb"), &copy).unwrap();
    let books = fixture::restored(&copy).unwrap();
    let expected = fs::read_to_string(dir.join("books.txt")).unwrap();
    assert_eq!(fixture::text(&books), expected);
}

#[test]
fn the_messages_of_0_1_have_the_bytes_they_had() {
    let expected = fs::read_to_string(fixture::dir("0.1").join("wire.txt")).unwrap();
    assert_eq!(fixture::wire_lines(), expected);
}
