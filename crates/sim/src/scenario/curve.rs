//! Curves of a scenario: a rate for each of some numbers of readers or threads, as a table of points.

use foresee_config::InputError;
use foresee_config::reader::{Document, Limits, Section, as_number, kind_of, named, quoted};
use toml::Value;

use super::Points;

/// Rates: one byte a second to far beyond any machine.
pub(super) const RATE: Limits = Limits {
    min: 1e-6,
    max: 1e12,
    said: "more than 0",
};

/// A curve, as messages speak of it.
pub(super) struct Curve {
    /// What its points count.
    count: &'static str,
    example: &'static str,
    /// What to give at a point, completing "give ...".
    means: &'static str,
}

/// By the number of readers of the source.
pub(super) const BY_READERS: Curve = Curve {
    count: "readers",
    example: "{ 1 = 66, 4 = 146 }",
    means: "the rate of all readers together in MB/s",
};

/// By the number of threads of a rank.
pub(super) const BY_THREADS: Curve = Curve {
    count: "threads",
    example: "{ 1 = 200, 4 = 700 }",
    means: "the rate of all threads together in MB/s",
};

impl Curve {
    /// The points under `key`, at least one.
    pub(super) fn points(&self, section: &Section<'_>, key: &str) -> Result<Points, InputError> {
        let value = section.need(key)?;
        let Value::Table(table) = value else {
            return Err(section.mistyped(key, value, "a table of points"));
        };
        if table.is_empty() {
            let remedy = format!("give at least one point, such as {}", self.example);
            return Err(section.error(key, "the curve has no points", remedy));
        }
        let path = section.path_to(key);
        let mut points = table
            .iter()
            .map(|(at, value)| {
                self.point(
                    section.document(),
                    &format!("{path}.{}", named(at)),
                    (at, value),
                )
            })
            .collect::<Result<Points, InputError>>()?;
        points.sort_unstable_by_key(|&(at, _)| at);
        Ok(points)
    }

    fn point(
        &self,
        document: Document<'_>,
        path: &str,
        point: (&str, &Value),
    ) -> Result<(u32, f64), InputError> {
        let Self {
            count,
            example,
            means,
        } = self;
        let (at, value) = point;
        let wrong = |what: String, remedy: String| Err(document.error(path, &[], what, remedy));
        // Only the plain way to write a number, so that no two keys are the same point.
        let at = match at.parse::<u32>() {
            Ok(0) => {
                return wrong(
                    "there is no point 0".to_owned(),
                    format!("count {count} from 1 as in {example}"),
                );
            }
            Ok(number) if number.to_string() == at => number,
            _ => {
                let what = format!("{} is not a number of {count}", quoted(at));
                return wrong(what, format!("give whole numbers from 1 as in {example}"));
            }
        };
        let Some(rate) = as_number(value) else {
            let what = format!("found {}, wanted a number", kind_of(value));
            return wrong(what, format!("write the points as in {example}"));
        };
        Ok((at, document.bounded(path, rate, (means, &RATE))?))
    }
}
