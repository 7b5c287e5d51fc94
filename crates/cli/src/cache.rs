//! `foresee cache`: what a cache folder holds, whether that is whole, and emptying it; for folders of jobs and of `foresee run`
//! alike. What jobs use is left to them, and what foresee did not make is left alone; both are said.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;
use comfy_table::{CellAlignment, Table, presets};
use foresee_config::{OneLine, shown};
use foresee_runtime::caches::{Cache, Check, Cleared, Kind, Part, Status};
use serde::Serialize;

use crate::table;

/// So many damaged samples are named; the others are counted.
const NAMED_MAX: usize = 10;

/// What `foresee cache` takes.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Say what a cache folder holds, and who uses it; exit code 1 where a part of it cannot be looked into.
    Status(Asked),
    /// Read all that a cache folder holds and compare it with its checksums; exit code 1 where something is damaged, or is
    /// in use or cannot be looked into, and was not compared.
    Verify(Asked),
    /// Delete what a cache folder holds; exit code 1 where something of foresee is in use or cannot be deleted, and stays.
    Clear(Asked),
}

#[derive(clap::Args)]
struct Asked {
    /// The folder, as `path` of [[tier]] in foresee.toml has it, or `--cache` of `foresee run`.
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
    /// Look into it even if others own it or may write to it, as `trust_folder = true` does for jobs.
    #[arg(long)]
    trust_folder: bool,
}

impl Asked {
    fn find(&self) -> Result<Cache> {
        Ok(Cache::find(&self.path, self.trust_folder)?)
    }

    /// Prints what came of it, as it was asked for.
    fn print<T: Serialize>(&self, cache: &Cache, result: &T, text: &str) -> Result<()> {
        if !self.json {
            return table::print(text);
        }
        let printed = Printed {
            folder: self.path.display().to_string(),
            kind: cache.kind(),
            result,
        };
        table::print(&serde_json::to_string_pretty(&printed)?)
    }
}

#[derive(Serialize)]
struct Printed<'a, T> {
    folder: String,
    kind: Kind,
    #[serde(flatten)]
    result: &'a T,
}

#[derive(Serialize)]
struct Looked<'a> {
    held_bytes: u64,
    disk_bytes: u64,
    #[serde(flatten)]
    status: &'a Status,
}

#[derive(Serialize)]
struct Verified<'a> {
    whole: bool,
    parts: &'a [Check],
}

#[derive(Serialize)]
struct Emptied<'a> {
    freed_bytes: u64,
    parts: &'a [Cleared],
    foreign: &'a [String],
}

/// Does it; whether all of it could be done, and was found well.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    match &arguments.action {
        Action::Status(folder) => status(folder),
        Action::Verify(folder) => verify(folder),
        Action::Clear(folder) => clear(folder),
    }
}

fn status(folder: &Asked) -> Result<bool> {
    let cache = folder.find()?;
    let status = cache.status()?;
    let sum = |bytes: fn(&Part) -> u64| status.parts.iter().map(bytes).sum();
    let looked = Looked {
        held_bytes: sum(|part| part.held_bytes),
        disk_bytes: sum(|part| part.disk_bytes),
        status: &status,
    };
    let mut text = format!(
        "{}: {} held, {} of the disk\n",
        shown(&folder.path),
        megabytes(looked.held_bytes),
        megabytes(looked.disk_bytes),
    );
    if !status.parts.is_empty() {
        let _ = writeln!(text, "{}", parts(entries(&cache), &status.parts));
    }
    for part in &status.parts {
        let name = OneLine(&part.name);
        if let Some(why) = &part.unreadable {
            let _ = writeln!(text, "{name}: not looked into: {why}");
        }
        if let Some(damage) = &part.damage {
            let _ = writeln!(text, "{name}: {damage}");
        }
        if part.torn_bytes > 0 {
            let _ = writeln!(text, "{name}: {}", torn(part.torn_bytes));
        }
    }
    text.push_str(&foreign(&status.foreign));
    folder.print(&cache, &looked, text.trim_end())?;
    Ok(status.parts.iter().all(|part| part.unreadable.is_none()))
}

/// That an index does not end where a record does.
fn torn(bytes: u64) -> String {
    format!(
        "the last {bytes} bytes of its index are not whole records: what they told of will be read again"
    )
}

/// What a cache holds.
fn entries(cache: &Cache) -> &'static str {
    match cache.kind() {
        Kind::Tiers => "samples",
        Kind::Copies => "files",
    }
}

fn parts(entries: &str, parts: &[Part]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["part", entries, "held", "space", "on disk", "used by"]);
    for part in parts {
        let name = OneLine(&part.name).to_string();
        if part.unreadable.is_some() {
            let unknown = || "?".to_owned();
            let on_disk = match part.disk_bytes {
                0 => unknown(),
                bytes => megabytes(bytes),
            };
            table.add_row([name, unknown(), unknown(), unknown(), on_disk, unknown()]);
            continue;
        }
        let space = part.space_bytes.map_or_else(String::new, megabytes);
        let user = part.in_use_by.as_ref();
        table.add_row([
            name,
            part.entries.to_string(),
            megabytes(part.held_bytes),
            space,
            megabytes(part.disk_bytes),
            user.map_or_else(|| "nobody".to_owned(), |user| format!("process {user}")),
        ]);
    }
    for column in table.column_iter_mut().skip(1).take(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn foreign(names: &[String]) -> String {
    let mut text = String::new();
    for name in names {
        let _ = writeln!(text, "{}: not of foresee, left alone", OneLine(name));
    }
    text
}

fn verify(folder: &Asked) -> Result<bool> {
    let cache = folder.find()?;
    let checks = cache.verify()?;
    let is_damaged = |check: &Check| !check.damaged.is_empty() || check.torn_bytes > 0;
    let is_well = |check: &Check| !is_damaged(check) && check.unchecked.is_none();
    let whole = checks.iter().all(is_well);
    let compared: u64 = checks.iter().map(|check| check.checked).sum();
    let bytes = checks.iter().map(|check| check.checked_bytes).sum();
    let mut text = format!(
        "{}: {compared} {} compared, {}\n",
        shown(&folder.path),
        entries(&cache),
        megabytes(bytes)
    );
    for check in &checks {
        let name = OneLine(&check.name);
        if let Some(why) = &check.unchecked {
            let _ = writeln!(text, "{name}: not compared: {why}");
        }
        if !check.damaged.is_empty() {
            let _ = writeln!(text, "{name}: damaged: {}", listed(&check.damaged));
        }
        if check.torn_bytes > 0 {
            let _ = writeln!(text, "{name}: damaged: {}", torn(check.torn_bytes));
        }
    }
    if checks.iter().any(is_damaged) {
        text.push_str(match cache.kind() {
            Kind::Tiers => "jobs find damage by themselves, and read what is damaged again",
            Kind::Copies => "what is damaged was deleted: programs read its source again",
        });
    }
    let verified = Verified {
        whole,
        parts: &checks,
    };
    folder.print(&cache, &verified, text.trim_end())?;
    Ok(whole)
}

/// The first ones by name, and how many more there are.
fn listed(names: &[String]) -> String {
    let first: Vec<String> = names
        .iter()
        .take(NAMED_MAX)
        .map(|name| OneLine(name).to_string())
        .collect();
    let more = names.len() - first.len();
    let first = first.join(", ");
    if more == 0 {
        first
    } else {
        format!("{first} and {more} more")
    }
}

fn clear(folder: &Asked) -> Result<bool> {
    let cache = folder.find()?;
    // Before: of a part that is gone but for what is not ours, nothing tells afterwards that it was one.
    let status = cache.status()?;
    let cleared = cache.clear()?;
    let emptied = Emptied {
        freed_bytes: cleared.iter().map(|part| part.freed_bytes).sum(),
        parts: &cleared,
        foreign: &status.foreign,
    };
    let mut text = format!(
        "{}: {} of the disk are free again\n",
        shown(&folder.path),
        megabytes(emptied.freed_bytes)
    );
    for part in &cleared {
        if let Some(why) = &part.left {
            let _ = writeln!(text, "{}: not cleared: {why}", OneLine(&part.name));
        }
    }
    text.push_str(&foreign(&status.foreign));
    folder.print(&cache, &emptied, text.trim_end())?;
    Ok(cleared.iter().all(|part| part.left.is_none()))
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
