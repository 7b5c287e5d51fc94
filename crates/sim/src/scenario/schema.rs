//! The keys of a scenario file and of `foresee.toml`, each with an example for whoever forgot it and the words that messages use for it.
//!
//! A new key is added here and read in `read.rs`; nothing else needs to know.

/// One key that a table may have.
pub(super) struct Key {
    pub(super) name: &'static str,
    /// A value, as one would write it.
    pub(super) example: &'static str,
    /// What to give, completing "give ...".
    pub(super) means: &'static str,
}

const fn key(name: &'static str, example: &'static str, means: &'static str) -> Key {
    Key { name, example, means }
}

impl Key {
    /// Whether it is a table with a header of its own.
    pub(super) fn is_section(&self) -> bool {
        self.example.starts_with('[')
    }

    /// The key as one would write it.
    pub(super) fn written(&self) -> String {
        if self.is_section() { self.example.to_owned() } else { format!("{} = {}", self.name, self.example) }
    }
}

/// Which kind of file a table is in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Document {
    Scenario,
    /// `foresee.toml`.
    Config,
}

/// All keys that one table may have.
pub(super) struct Keys {
    pub(super) document: Document,
    /// Where such a key is written, completing "belongs ...".
    pub(super) place: &'static str,
    pub(super) all: &'static [Key],
}

pub(super) const TOP: Keys = Keys {
    document: Document::Scenario,
    place: "at the top, before [job]",
    all: &[
        key("name", r#""imagenet-1k""#, "the name of the scenario"),
        key("job", "[job]", "the job"),
        key("dataset", "[dataset]", "the dataset"),
        key("system", "[system]", "the system"),
    ],
};

pub(super) const JOB: Keys = Keys {
    document: Document::Scenario,
    place: "in [job]",
    all: &[
        key("ranks", "4", "the number of ranks"),
        key("ranks_per_host", "1", "the number of ranks on one host"),
        key("global_batch", "100", "the samples of one step, all ranks together"),
        key("epochs", "10", "the number of epochs"),
        key("drop_last", "true", "whether an incomplete last batch is dropped"),
        key("seed", "1", "the seed"),
        key("shuffle", r#""feistel""#, "the shuffle"),
        key("assignment", r#""order""#, "the assignment"),
        key("compute_mb_per_s", "100", "what one rank trains in MB/s"),
        key("preprocess_mb_per_s", "200", "what one thread decodes in MB/s"),
        key("decoded_mb_per_mb", "6.0", "the size of decoded samples for each MB read"),
    ],
};

pub(super) const DATASET: Keys = Keys {
    document: Document::Scenario,
    place: "in [dataset]",
    all: &[
        key("samples", "150000", "the number of samples"),
        key("size_mb", "{ mean = 1.0, stddev = 0.1 }", "the sizes of the samples"),
    ],
};

pub(super) const SIZE: Keys = Keys {
    document: Document::Scenario,
    place: "in dataset.size_mb",
    all: &[
        key("mean", "1.0", "the mean size in MB"),
        key("stddev", "0.1", "the standard deviation of the size in MB"),
        key("fixed", "1.0", "the size of every sample in MB"),
        key("file", r#""sizes.txt""#, "the path of the sizes file, from the folder of the scenario"),
    ],
};

pub(super) const SYSTEM: Keys = Keys {
    document: Document::Scenario,
    place: "in [system]",
    all: &[
        key("network_mb_per_s", "10000", "the rate between two ranks in MB/s"),
        key("source_link_mb_per_s", "2000", "the rate between one rank and the source in MB/s"),
        key("source_read_mb_per_s", "{ 1 = 66, 4 = 146 }", "what the source gives all readers together in MB/s"),
        key("source_latency_ms", "1.5", "how long a read of the source takes before its first byte, in ms"),
        key("contention", r#""reads""#, "the contention"),
        key("extrapolate", r#""regression""#, "the extrapolation"),
        key("cores_per_host", "16", "the number of cores of one host"),
        key("tier", "[[system.tier]]", "the tiers"),
    ],
};

pub(super) const TIER: Keys = Keys {
    document: Document::Scenario,
    place: "in [[system.tier]]",
    all: &[
        key("name", r#""staging""#, "the name of the tier"),
        key("capacity_mb", "1024", "the capacity in MB"),
        key("scope", r#""rank""#, "the scope"),
        key("threads", "2", "the number of threads of one rank"),
        key("read_mb_per_s", "{ 2 = 21164 }", "what all threads together read in MB/s"),
        key("write_mb_per_s", "{ 2 = 21164 }", "what all threads together write in MB/s"),
    ],
};

pub(super) const CONFIG_TOP: Keys = Keys {
    document: Document::Config,
    place: "at the top",
    all: &[key("staging", "[staging]", "the staging buffer"), key("tier", "[[tier]]", "the tiers")],
};

pub(super) const CONFIG_STAGING: Keys = Keys {
    document: Document::Config,
    place: "in [staging]",
    all: &[
        key("capacity", r#""512 MiB""#, "the capacity"),
        key("threads", r#""auto""#, r#""auto" or the number of threads of one rank"#),
    ],
};

pub(super) const CONFIG_TIER: Keys = Keys {
    document: Document::Config,
    place: "in [[tier]]",
    all: &[
        key("kind", r#""memory""#, "the kind"),
        key("capacity", r#""4 GiB""#, "the capacity"),
        key("path", r#""/nvme/foresee""#, "the folder of the tier"),
        key("threads", "2", "the number of threads of one rank"),
    ],
};

const ALL: [&Keys; 9] = [&TOP, &JOB, &DATASET, &SIZE, &SYSTEM, &TIER, &CONFIG_TOP, &CONFIG_STAGING, &CONFIG_TIER];

impl Keys {
    /// The key of this name; the reader asks for keys of the schema only.
    pub(super) fn get(&self, name: &str) -> &'static Key {
        let Some(key) = self.all.iter().find(|key| key.name == name) else {
            panic!("{name} is read but not in the schema {}", self.place)
        };
        key
    }

    pub(super) fn knows(&self, name: &str) -> bool {
        self.all.iter().any(|key| key.name == name)
    }

    /// What to advise for a key that this table does not have. `full` completes a key to its path.
    pub(super) fn advise(&self, wrong: &str, full: impl Fn(&str) -> String) -> String {
        if let Some(other) = ALL.iter().find(|keys| keys.document == self.document && keys.knows(wrong)) {
            return format!("{wrong} belongs {}", other.place);
        }
        if let Some(near) = self.nearest(wrong) {
            return format!("did you mean {}?", full(near));
        }
        format!("the keys here are {}", self.names())
    }

    /// All keys in one line.
    pub(super) fn names(&self) -> String {
        self.all.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
    }

    /// The key that `wrong` was probably meant to be: one slip per three letters.
    fn nearest(&self, wrong: &str) -> Option<&'static str> {
        let slips = |key: &Key| strsim::osa_distance(wrong, key.name);
        let near = self.all.iter().min_by_key(|key| slips(key))?;
        (slips(near) <= near.name.len().div_ceil(3)).then_some(near.name)
    }
}
