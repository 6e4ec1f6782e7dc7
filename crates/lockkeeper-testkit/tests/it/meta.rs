//! That nothing is left out.

use std::collections::BTreeSet;

macro_rules! names {
    ({} $($group:ident: [ $($case:ident,)* ])*) => {
        const CASES: &[(&str, &[&str])] =
            &[$((stringify!($group), &[$(stringify!($case)),*])),*];
    };
}
lockkeeper_testkit::every_case! { names {} }

/// Every case that exists is in the list that every engine runs.
#[test]
fn every_case_is_listed() {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cases");
    let mut written = BTreeSet::new();
    for file in std::fs::read_dir(sources).unwrap() {
        let path = file.unwrap().path();
        let group = path.file_stem().unwrap().to_string_lossy().into_owned();
        if group == "mod" {
            continue;
        }
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            if let Some(rest) = line.strip_prefix("pub async fn ") {
                let case = rest.split('(').next().unwrap();
                written.insert((group.clone(), case.to_owned()));
            }
        }
    }
    let listed: BTreeSet<_> = CASES
        .iter()
        .flat_map(|(group, cases)| cases.iter().map(|case| (group.to_string(), case.to_string())))
        .collect();
    assert_eq!(written, listed);
}

/// Every engine the library can open runs the whole list.
#[test]
fn every_engine_runs_every_case() {
    let main = include_str!("main.rs");
    let engines = concat!(env!("CARGO_MANIFEST_DIR"), "/../lockkeeper/src/engine");
    for file in std::fs::read_dir(engines).unwrap() {
        let path = file.unwrap().path();
        let engine = path.file_stem().unwrap().to_string_lossy().into_owned();
        let lines: &[&str] = match engine.as_str() {
            // No engines, but what several share.
            "lines" | "words" => &[],
            // One engine for several servers.
            "sql" => &["mariadb", "postgres"],
            engine => &[engine],
        };
        for line in lines {
            let run = format!("conformance! {{ {line}");
            assert!(main.contains(&run), "no line in main.rs starts with {run:?}");
        }
    }
}

/// Every public async function says what dropping it does.
#[test]
fn every_async_function_has_a_cancel_safety_section() {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../lockkeeper/src");
    let mut checked = 0;
    let mut folders = vec![std::path::PathBuf::from(sources)];
    while let Some(folder) = folders.pop() {
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let mut comment = String::new();
            for line in std::fs::read_to_string(&path).unwrap().lines() {
                let line = line.trim();
                if line.starts_with("///") {
                    comment.push_str(line);
                } else if line.starts_with("pub async fn") {
                    assert!(comment.contains("# Cancel safety"), "{}: {line}", path.display());
                    checked += 1;
                } else if !line.starts_with("#[") {
                    comment.clear();
                }
            }
        }
    }
    assert!(checked > 30, "only {checked} functions were found");
}
