//! The keys that the tables of a format may have, each with an example for whoever forgot it and the words that messages
//! use for it.

/// One key that a table may have.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// A value, as one would write it.
    pub example: &'static str,
    /// What to give, completing "give ...".
    pub means: &'static str,
}

/// A key in one line.
pub const fn key(name: &'static str, example: &'static str, means: &'static str) -> Key {
    Key {
        name,
        example,
        means,
    }
}

impl Key {
    /// Whether it is a table with a header of its own.
    pub(super) fn is_section(&self) -> bool {
        self.example.starts_with('[')
    }

    /// The key as one would write it.
    pub(super) fn written(&self) -> String {
        if self.is_section() {
            self.example.to_owned()
        } else {
            format!("{} = {}", self.name, self.example)
        }
    }
}

/// All keys that one table may have.
pub struct Keys {
    /// Where such a key is written, completing "belongs ...".
    pub place: &'static str,
    /// The keys.
    pub all: &'static [Key],
}

impl Keys {
    /// The key of this name; the reader asks for keys of the schema only.
    pub(super) fn get(&self, name: &str) -> &'static Key {
        let Some(key) = self.all.iter().find(|key| key.name == name) else {
            panic!("{name} is read but not in the schema {}", self.place)
        };
        key
    }

    pub(crate) fn knows(&self, name: &str) -> bool {
        self.all.iter().any(|key| key.name == name)
    }

    /// What to advise for a key that this table does not have, though another of the format's `tables` may. `full`
    /// completes a key to its path.
    pub(super) fn advise(
        &self,
        wrong: &str,
        tables: &[&Keys],
        full: impl Fn(&str) -> String,
    ) -> String {
        if let Some(other) = tables.iter().find(|keys| keys.knows(wrong)) {
            return format!("{wrong} belongs {}", other.place);
        }
        if let Some(near) = self.nearest(wrong) {
            return format!("did you mean {}?", full(near));
        }
        format!("the keys here are {}", self.names())
    }

    /// All keys in one line.
    pub(super) fn names(&self) -> String {
        self.all
            .iter()
            .map(|key| key.name)
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// The key that `wrong` was probably meant to be: one slip per three letters.
    pub(crate) fn nearest(&self, wrong: &str) -> Option<&'static str> {
        let slips = |key: &Key| strsim::osa_distance(wrong, key.name);
        let near = self.all.iter().min_by_key(|key| slips(key))?;
        (slips(near) <= near.name.len().div_ceil(3)).then_some(near.name)
    }
}
