//! Plain Python values (numbers, texts, lists, dictionaries) from and to JSON, which states, statistics and
//! configurations pass through.

use std::path::PathBuf;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde_json::{Map, Number, Value};

use crate::errors::{Kind, error};

/// Deeper than any table of ours; a dictionary that holds itself ends here.
const DEPTH_MAX: usize = 16;

/// A value that messages call `name`.
pub(crate) fn from_python(value: &Bound<'_, PyAny>, name: &str, depth: usize) -> PyResult<Value> {
    let refuse = |what: String| {
        error(
            value.py(),
            Kind::Type,
            format!("{name}: {what}; give numbers, texts, lists or dicts"),
        )
    };
    if depth > DEPTH_MAX {
        return Err(refuse(format!("more than {DEPTH_MAX} levels")));
    }
    if value.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(Value::Bool(flag.is_true()));
    }
    if value.is_instance_of::<PyInt>() {
        let number = value
            .extract::<u64>()
            .map(Number::from)
            .or_else(|_| value.extract::<i64>().map(Number::from));
        return number
            .map(Value::Number)
            .map_err(|_| refuse("a number beyond 64 bits".to_owned()));
    }
    if value.is_instance_of::<PyFloat>() {
        let number = Number::from_f64(value.extract()?);
        return number
            .map(Value::Number)
            .ok_or_else(|| refuse("not a finite number".to_owned()));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Value::String(text.to_str()?.to_owned()));
    }
    if let Ok(table) = value.cast::<PyDict>() {
        return table_from_python(table, name, depth);
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let items = value.try_iter()?.enumerate();
        let items =
            items.map(|(index, item)| from_python(&item?, &format!("{name}[{index}]"), depth + 1));
        return Ok(Value::Array(items.collect::<PyResult<_>>()?));
    }
    if let Ok(path) = value.extract::<PathBuf>() {
        return Ok(Value::String(path.to_string_lossy().into_owned()));
    }
    Err(refuse(format!(
        "a value of type {}",
        value.get_type().name()?
    )))
}

fn table_from_python(table: &Bound<'_, PyDict>, name: &str, depth: usize) -> PyResult<Value> {
    let mut map = Map::new();
    for (key, item) in table {
        let Ok(key) = key.extract::<String>() else {
            let said = format!(
                "{name}: the key {} is no text; give keys as in foresee.toml",
                key.repr()?
            );
            return Err(error(table.py(), Kind::Type, said));
        };
        let item = from_python(&item, &format!("{name}.{key}"), depth + 1)?;
        map.insert(key, item);
    }
    Ok(Value::Object(map))
}

/// A configuration's table; what is wrong is said with the key's name. TOML has neither nothing nor numbers of 64 bits
/// without a sign.
pub(crate) fn into_toml(value: Value, name: &str) -> Result<toml::Value, String> {
    Ok(match value {
        Value::Null => return Err(format!("{name}: None is no value; leave the key out")),
        Value::Bool(flag) => toml::Value::Boolean(flag),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => toml::Value::Integer(whole),
            (None, Some(real)) if number.is_f64() => toml::Value::Float(real),
            (None, _) => {
                return Err(format!(
                    "{name}: {number} is beyond 64 bits with a sign; give less"
                ));
            }
        },
        Value::String(text) => toml::Value::String(text),
        Value::Array(items) => {
            let items = items.into_iter().enumerate();
            let items = items.map(|(index, item)| into_toml(item, &format!("{name}[{index}]")));
            toml::Value::Array(items.collect::<Result<_, _>>()?)
        }
        Value::Object(map) => {
            let pairs = map.into_iter().map(|(key, item)| {
                let item = into_toml(item, &format!("{name}.{key}"))?;
                Ok((key, item))
            });
            toml::Value::Table(pairs.collect::<Result<_, String>>()?)
        }
    })
}

/// The same in Python.
pub(crate) fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Null => Ok(py.None().into_bound(py)),
        Value::Bool(flag) => flag.into_bound_py_any(py),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(whole), _) => whole.into_bound_py_any(py),
            (None, Some(negative)) => negative.into_bound_py_any(py),
            (None, None) => number.as_f64().into_bound_py_any(py),
        },
        Value::String(text) => text.into_bound_py_any(py),
        Value::Array(items) => {
            let items = items
                .iter()
                .map(|item| to_python(py, item))
                .collect::<PyResult<Vec<_>>>()?;
            items.into_bound_py_any(py)
        }
        Value::Object(map) => {
            let table = PyDict::new(py);
            for (key, item) in map {
                table.set_item(key, to_python(py, item)?)?;
            }
            Ok(table.into_any())
        }
    }
}
