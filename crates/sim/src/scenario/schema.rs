//! The keys of a scenario file, each with an example for whoever forgot it and the words that messages use for it.
//!
//! A new key is added here and read in `read.rs`; nothing else needs to know.

use foresee_config::reader::{Keys, key};

/// Every table of a scenario.
pub(super) const TABLES: &[&Keys] = &[&TOP, &JOB, &DATASET, &SIZE, &SYSTEM, &TIER];

pub(super) const TOP: Keys = Keys {
    place: "at the top, before [job]",
    all: &[
        key("name", r#""imagenet-1k""#, "the name of the scenario"),
        key("job", "[job]", "the job"),
        key("dataset", "[dataset]", "the dataset"),
        key("system", "[system]", "the system"),
    ],
};

pub(super) const JOB: Keys = Keys {
    place: "in [job]",
    all: &[
        key("ranks", "4", "the number of ranks"),
        key("ranks_per_host", "1", "the number of ranks on one host"),
        key(
            "global_batch",
            "100",
            "the samples of one step, all ranks together",
        ),
        key("epochs", "10", "the number of epochs"),
        key(
            "drop_last",
            "true",
            "whether an incomplete last batch is dropped",
        ),
        key("seed", "1", "the seed"),
        key("shuffle", r#""feistel""#, "the shuffle"),
        key("assignment", r#""order""#, "the assignment"),
        key(
            "balance",
            r#""policy""#,
            "whether a host's threads go to the rank that would be late",
        ),
        key("compute_mb_per_s", "100", "what one rank trains in MB/s"),
        key(
            "preprocess_mb_per_s",
            "200",
            "what one thread decodes in MB/s",
        ),
        key(
            "decoded_mb_per_mb",
            "6.0",
            "the size of decoded samples for each MB read",
        ),
    ],
};

pub(super) const DATASET: Keys = Keys {
    place: "in [dataset]",
    all: &[
        key("samples", "150000", "the number of samples"),
        key(
            "size_mb",
            "{ mean = 1.0, stddev = 0.1 }",
            "the sizes of the samples",
        ),
    ],
};

pub(super) const SIZE: Keys = Keys {
    place: "in dataset.size_mb",
    all: &[
        key("mean", "1.0", "the mean size in MB"),
        key("stddev", "0.1", "the standard deviation of the size in MB"),
        key("fixed", "1.0", "the size of every sample in MB"),
        key(
            "file",
            r#""sizes.txt""#,
            "the path of the sizes file, from the folder of the scenario",
        ),
    ],
};

pub(super) const SYSTEM: Keys = Keys {
    place: "in [system]",
    all: &[
        key(
            "network_mb_per_s",
            "10000",
            "the rate between two ranks in MB/s",
        ),
        key(
            "source_link_mb_per_s",
            "2000",
            "the rate between one rank and the source in MB/s",
        ),
        key(
            "source_read_mb_per_s",
            "{ 1 = 66, 4 = 146 }",
            "what the source gives all readers together in MB/s",
        ),
        key(
            "source_latency_ms",
            "1.5",
            "how long a read of the source takes before its first byte, in ms",
        ),
        key("contention", r#""reads""#, "the contention"),
        key("extrapolate", r#""regression""#, "the extrapolation"),
        key("cores_per_host", "16", "the number of cores of one host"),
        key("tier", "[[system.tier]]", "the tiers"),
    ],
};

pub(super) const TIER: Keys = Keys {
    place: "in [[system.tier]]",
    all: &[
        key("name", r#""staging""#, "the name of the tier"),
        key("capacity_mb", "1024", "the capacity in MB"),
        key("scope", r#""rank""#, "the scope"),
        key("threads", "2", "the number of threads of one rank"),
        key(
            "read_mb_per_s",
            "{ 2 = 21164 }",
            "what all threads together read in MB/s",
        ),
        key(
            "write_mb_per_s",
            "{ 2 = 21164 }",
            "what all threads together write in MB/s",
        ),
    ],
};
