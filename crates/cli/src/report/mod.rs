//! Reports as one HTML file: charts, inputs and numbers, without network, scripts or files beside it.
//!
//! [`write()`] turns a [`Report`] into a page in three steps: `page` and `sweep` bring the results into the form of
//! charts and tables, `charts` draws (plain data in, SVG out), and the template `page.html` with `style.css` puts it
//! together. [`write_runs`] does the same for real runs, by `measured` and `measured.html`. All text is escaped, by the template and by the charts' canvas; the page's own policy forbids scripts.

mod balance;
mod charts;
mod format;
mod inputs;
mod measured;
mod page;
mod ranks;
mod sweep;
mod tables;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use foresee_sim::outcome::{Comparison, Outcome};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value};
use serde::Serialize;

use crate::runs::Runs;

pub(crate) use format::count;
pub(crate) use inputs::inputs;

/// The two kinds of page, and what they share.
const TEMPLATES: [(&str, &str); 6] = [
    ("style.css", include_str!("style.css")),
    ("head.html", include_str!("head.html")),
    ("figure.html", include_str!("figure.html")),
    ("tail.html", include_str!("tail.html")),
    ("page.html", include_str!("page.html")),
    ("measured.html", include_str!("measured.html")),
];

/// What a page shows.
pub(crate) struct Report<'a> {
    /// Policy by policy, with the bounds.
    pub comparison: &'a Comparison,
    /// Every value that the results follow from: key and value.
    pub inputs: Vec<(String, String)>,
    /// How often ranks use a sample.
    pub frequency: Option<Bars>,
    /// How far apart two uses of a sample are.
    pub reuse: Option<Bars>,
    /// Results for other values of one or two inputs.
    pub sweep: Option<&'a Sweep>,
}

/// A histogram.
pub(crate) struct Bars {
    pub title: String,
    pub x_title: String,
    pub y_title: String,
    /// Label and height, from left to right.
    #[expect(clippy::struct_field_names, reason = "a histogram is its bars")]
    pub bars: Vec<(String, f64)>,
    /// What to know about it; may be empty.
    pub note: String,
}

/// The results for other values of one or two inputs.
pub(crate) struct Sweep {
    /// The inputs; one or two.
    pub keys: Vec<String>,
    pub points: Vec<SweepPoint>,
}

/// One setting of a sweep.
pub(crate) struct SweepPoint {
    /// One for each key.
    pub values: Vec<String>,
    /// Policy by policy.
    pub results: Vec<Outcome>,
}

/// Writes the page. What was at `path` stays until the new page is whole.
pub(crate) fn write(report: &Report<'_>, path: &Path) -> Result<()> {
    put(render(report), path)
}

/// The same for real runs.
pub(crate) fn write_runs(runs: &Runs, path: &Path) -> Result<()> {
    put(filled("measured.html", &measured::Page::new(runs)), path)
}

fn put(html: Result<String>, path: &Path) -> Result<()> {
    let html = html.with_context(|| format!("report {}", path.display()))?;
    replace(path, &html).with_context(|| format!("report {}: cannot be written", path.display()))
}

/// Fails early where [`write()`] could only fail: to be asked before a long simulation. `option` names the path.
pub(crate) fn check(path: &Path, option: &str) -> Result<()> {
    let folder = folder_of(path);
    if !folder.is_dir() {
        bail!(
            "{option} {}: no such folder: {}; make it first",
            path.display(),
            folder.display()
        );
    }
    match std::fs::metadata(path) {
        // A pipe or a device would be replaced by a file, which nobody means.
        Ok(there) if !there.is_file() => bail!(
            "{option} {}: is not a file; give a file's name",
            path.display()
        ),
        _ => Ok(()),
    }
}

fn render(report: &Report<'_>) -> Result<String> {
    filled("page.html", &page::Page::new(report)?)
}

fn filled(template: &str, page: &impl Serialize) -> Result<String> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?,
    );
    for (name, text) in TEMPLATES {
        environment.add_template(name, text)?;
    }
    Ok(environment
        .get_template(template)?
        .render(Value::from(Serde(page)))?)
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Into a file beside it, then renamed: a reader sees the old page or the new one. A link stays a link.
fn replace(path: &Path, html: &str) -> Result<()> {
    check(path, "file")?;
    let target = if path.exists() {
        path.canonicalize()?
    } else {
        path.to_owned()
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".foresee-report-").suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As any new file; the user's umask takes from it.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder_of(&target))?;
    file.write_all(html.as_bytes())?;
    file.persist(&target)?;
    Ok(())
}

#[cfg(test)]
mod tests;
