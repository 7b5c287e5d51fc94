//! Variables in the path of a tier: `$SLURM_TMPDIR/foresee`, `${SLURM_TMPDIR|TMPDIR|/tmp}/foresee`, `${node-local}/foresee`.
//!
//! Where a host's own disk is, sites say in variables that only a job has, and each site in another one. So a path may name
//! them, several with the first that is set winning, or leave the order to [`NODE_LOCAL`]. Values are taken as they are:
//! what looks like a variable in them is none. What is wrong is told as what and remedy; the caller knows whose path it is.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::environment::Environment;
use crate::reader::quoted;

/// Stands for the first of [`NODE_LOCAL`] that is set. No variable can have this name.
const NODE_LOCAL_NAME: &str = "node-local";
/// Where sites say that a job finds its host's own disk. `TMPDIR` is last: outside of jobs, too, it is often set to something.
const NODE_LOCAL: [&str; 4] = ["SLURM_TMPDIR", "LOCAL_SCRATCH", "PBS_JOBFS", "TMPDIR"];

/// What is wrong with a path, and what to do.
pub(crate) type Wrong = (String, String);

/// The path that `text` stands for.
pub(crate) fn expanded(text: &str, environment: &Environment) -> Result<PathBuf, Wrong> {
    let mut path = OsString::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        path.push(before);
        rest = if let Some(after) = after.strip_prefix('$') {
            path.push("$");
            after
        } else if let Some(braced) = after.strip_prefix('{') {
            let Some((names, after)) = braced.split_once('}') else {
                let remedy = "end it with }, or write $$ for a dollar sign".to_owned();
                return Err(("${ is not closed".to_owned(), remedy));
            };
            path.push(first_set(names, environment)?);
            after
        } else {
            let end = after.bytes().position(|byte| !is_of_name(byte));
            let (name, after) = after.split_at(end.unwrap_or(after.len()));
            path.push(first_set(name, environment)?);
            after
        };
    }
    path.push(rest);
    Ok(path.into())
}

/// The value of the first of `names`, which `|` divides; the last may be a path that holds where none is set.
fn first_set(names: &str, environment: &Environment) -> Result<OsString, Wrong> {
    let (variables, otherwise) = match names.rsplit_once('|') {
        Some((variables, last)) if last.starts_with('/') => (variables, Some(last)),
        _ => (names, None),
    };
    let looked_for = looked_for(variables)?;
    // What is empty tells no more than what is not there.
    let value = looked_for
        .iter()
        .filter_map(|name| environment.get(name))
        .find(|value| !value.is_empty());
    let value = value.or(otherwise.map(OsStr::new));
    value.map(OsString::from).ok_or_else(|| {
        let what = match looked_for.as_slice() {
            [name] => format!("{name} is not set"),
            several => format!("none of {} is set", several.join(", ")),
        };
        let remedy = format!("set it, or say what holds without it, as in ${{{names}|/tmp}}");
        (what, remedy)
    })
}

/// The variables that `names` stands for, in their order.
fn looked_for(names: &str) -> Result<Vec<&str>, Wrong> {
    let mut looked_for = Vec::new();
    for name in names.split('|') {
        if name == NODE_LOCAL_NAME {
            looked_for.extend(NODE_LOCAL);
        } else if is_name(name) {
            looked_for.push(name);
        } else {
            let what = format!("{} is not the name of a variable", quoted(name));
            let remedy =
                "write as in $TMPDIR or ${SLURM_TMPDIR|TMPDIR|/tmp}, and $$ for a dollar sign";
            return Err((what, remedy.to_owned()));
        }
    }
    Ok(looked_for)
}

fn is_name(text: &str) -> bool {
    text.bytes().all(is_of_name)
        && !text.starts_with(|first: char| first.is_ascii_digit())
        && !text.is_empty()
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(text: &str, variables: &[(&str, &str)]) -> Result<String, String> {
        let environment = variables.iter().copied().collect();
        expanded(text, &environment)
            .map(|path| path.to_str().unwrap().to_owned())
            .map_err(|(what, remedy)| format!("{what}; {remedy}"))
    }

    #[test]
    fn variables_of_any_name_are_put_in_wherever_they_stand() {
        let variables = [
            ("SLURM_TMPDIR", "/local/7"),
            ("USER", "ada"),
            ("_2", "$USER"),
        ];
        let cases = [
            ("/nvme/foresee", "/nvme/foresee"),
            ("$SLURM_TMPDIR", "/local/7"),
            ("$SLURM_TMPDIR/foresee", "/local/7/foresee"),
            ("/nvme/${USER}_cache/$USER-b", "/nvme/ada_cache/ada-b"),
            ("/a$$b", "/a$b"),
            // Values are taken as they are.
            ("/x/$_2", "/x/$USER"),
        ];
        for (text, path) in cases {
            assert_eq!(seen(text, &variables).as_deref(), Ok(path), "{text}");
        }
    }

    #[test]
    fn the_first_variable_that_is_set_holds() {
        let text = "${SLURM_TMPDIR|TMPDIR|/tmp}/foresee";
        let both = [("TMPDIR", "/t"), ("SLURM_TMPDIR", "/s")];
        assert_eq!(seen(text, &both).as_deref(), Ok("/s/foresee"));
        assert_eq!(seen(text, &both[..1]).as_deref(), Ok("/t/foresee"));
        assert_eq!(seen(text, &[]).as_deref(), Ok("/tmp/foresee"));
        let empty = [("SLURM_TMPDIR", "")];
        assert_eq!(seen(text, &empty).as_deref(), Ok("/tmp/foresee"));
    }

    #[test]
    fn node_local_tries_what_sites_set_in_order() {
        let all = NODE_LOCAL.map(|name| (name, name));
        for first in 0..all.len() {
            let found = seen("${node-local}/x", &all[first..]);
            assert_eq!(found, Ok(format!("{}/x", NODE_LOCAL[first])));
        }
        assert_eq!(seen("${JOBDIR|node-local|/d}", &[]).as_deref(), Ok("/d"));
    }

    #[test]
    fn what_cannot_be_is_said_with_its_remedy() {
        let spelling =
            "write as in $TMPDIR or ${SLURM_TMPDIR|TMPDIR|/tmp}, and $$ for a dollar sign";
        let cases = [
            (
                "$TMPDIR/x",
                "TMPDIR is not set; set it, or say what holds without it, as in ${TMPDIR|/tmp}".to_owned(),
            ),
            (
                "${node-local}/x",
                "none of SLURM_TMPDIR, LOCAL_SCRATCH, PBS_JOBFS, TMPDIR is set; set it, or say what holds without it, \
                 as in ${node-local|/tmp}"
                    .to_owned(),
            ),
            (
                "${TMPDIR/x",
                "${ is not closed; end it with }, or write $$ for a dollar sign".to_owned(),
            ),
            ("/a$", format!("\"\" is not the name of a variable; {spelling}")),
            ("/a$/b", format!("\"\" is not the name of a variable; {spelling}")),
            ("${}", format!("\"\" is not the name of a variable; {spelling}")),
            ("${A:-b}", format!("\"A:-b\" is not the name of a variable; {spelling}")),
            ("$1", format!("\"1\" is not the name of a variable; {spelling}")),
            ("${/tmp|A}", format!("\"/tmp\" is not the name of a variable; {spelling}")),
        ];
        for (text, said) in cases {
            assert_eq!(seen(text, &[]), Err(said), "{text}");
        }
    }
}
