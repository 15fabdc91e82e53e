//! What is released says the same of itself everywhere: PGXN's META.json, Cargo.toml, the
//! changelog, the control file and the client's crate. Needs no server.
//!
//! The packages themselves are checked by `make check-package`, `check-dist` and `check-publish`.

// A test fails by panicking, and so do its helpers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};

use pgxn_meta::valid::Validator;
use serde_json::{Value, json};

/// Every crate of the workspace has the version of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn meta() -> Value {
    serde_json::from_str(&read("META.json")).unwrap()
}

/// PGXN asks for semantic versions, which the version of a Cargo.toml always is.
#[test]
fn meta_json_follows_pgxns_specification() {
    let meta = meta();
    let followed = Validator::new().validate(&meta).unwrap();
    assert_eq!(followed, 1, "version of the specification");

    for required in [
        "name",
        "abstract",
        "version",
        "maintainer",
        "license",
        "provides",
        "meta-spec",
    ] {
        let mut incomplete = meta.clone();
        incomplete
            .as_object_mut()
            .unwrap()
            .remove(required)
            .unwrap();
        assert!(
            Validator::new().validate(&incomplete).is_err(),
            "valid without {required}"
        );
    }
}

#[test]
fn meta_json_describes_this_version() {
    let meta = meta();
    let extension = &meta["provides"]["sequential_inbox"];
    assert_eq!(meta["version"], VERSION);
    assert_eq!(extension["version"], VERSION);
    assert_eq!(extension["abstract"], meta["abstract"]);
    for file in ["file", "docfile"] {
        let named = extension[file].as_str().unwrap();
        assert!(root().join(named).is_file(), "{file}: {named}");
    }
    let expected = if VERSION.contains('-') {
        "testing"
    } else {
        "stable"
    };
    assert_eq!(meta["release_status"], expected);
}

/// `MIT OR Apache-2.0` in PGXN's names, with the texts where every package finds them.
#[test]
fn the_licence_is_the_same_everywhere() {
    assert_eq!(env!("CARGO_PKG_LICENSE"), "MIT OR Apache-2.0");
    assert_eq!(meta()["license"], json!(["mit", "apache_2_0"]));
    for text in ["LICENSE-MIT", "LICENSE-APACHE"] {
        assert_eq!(read(text), read(&format!("client/{text}")), "{text}");
    }
    let copyright = read("packaging/debian/copyright");
    assert!(
        copyright.contains("License: Expat or Apache-2.0"),
        "{copyright}"
    );
}

/// Cargo-pgrx puts the version of Cargo.toml into the control file; one written there would win.
#[test]
fn the_control_file_takes_its_version_from_cargo() {
    let control = read("sequential_inbox.control");
    assert!(
        control.contains("default_version = '@CARGO_VERSION@'"),
        "{control}"
    );
}

/// The first heading of the changelog that names a version.
#[test]
fn the_changelog_opens_with_this_version() {
    let changelog = read("CHANGELOG.md");
    let newest = changelog
        .lines()
        .filter_map(|line| line.strip_prefix("## ["))
        .filter_map(|line| line.split_once(']'))
        .map(|(version, _)| version)
        .find(|version| *version != "Unreleased");
    assert_eq!(newest, Some(VERSION));
}

/// A version that was released can be updated to this one, in one step or several.
#[test]
fn every_released_version_has_a_way_to_this_one() {
    let mut steps = Vec::new();
    let mut released = Vec::new();
    let mut folders = vec![root().join("sql")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
                continue;
            }
            let name = entry.file_name().into_string().unwrap();
            let Some(script) = name
                .strip_prefix("sequential_inbox--")
                .and_then(|name| name.strip_suffix(".sql"))
            else {
                continue;
            };
            match script.split_once("--") {
                Some((from, to)) => steps.push((from.to_owned(), to.to_owned())),
                None => released.push(script.to_owned()),
            }
        }
    }
    assert!(!released.is_empty(), "no script of a released version");
    for old in released {
        let mut reached = vec![old.clone()];
        let mut next = 0;
        while next < reached.len() {
            let here = reached[next].clone();
            let further = steps
                .iter()
                .filter(|(from, _)| *from == here)
                .map(|(_, to)| to.clone());
            let further: Vec<_> = further.filter(|to| !reached.contains(to)).collect();
            reached.extend(further);
            next += 1;
        }
        assert!(
            reached.iter().any(|version| version == VERSION),
            "no way from {old} to {VERSION}"
        );
    }
}
