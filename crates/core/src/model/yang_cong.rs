//! Yang & Cong's closed-form cost of an epoch: what distributed caching and locality-aware loading save. Rates are in
//! samples a second and the dataset in samples, as in the paper; the simulator's `distributed-cache` and
//! `locality-aware` policies are checked against it.

/// One epoch on `hosts` hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epoch {
    /// Samples in the dataset (D).
    pub samples: f64,
    /// Participating hosts (p).
    pub hosts: f64,
    /// Training rate of a host (V).
    pub train_rate: f64,
    /// Rate of the source (R).
    pub source_rate: f64,
    /// Preprocessing rate of a host (U).
    pub preprocess_rate: f64,
}

/// What the aggregated cache adds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cache {
    /// Cached share of the dataset (alpha).
    pub share: f64,
    /// Rate of reading from peers' caches (`R_c`, and `R_b` for balancing).
    pub rate: f64,
}

impl Epoch {
    /// Equation 1: training alone.
    pub fn training_s(&self) -> f64 {
        self.samples / (self.hosts * self.train_rate)
    }

    /// Equation 4: reading everything from the source, and preprocessing.
    pub fn loading_s(&self) -> f64 {
        self.samples / self.source_rate + self.samples / (self.hosts * self.preprocess_rate)
    }

    /// Equation 6: the larger of training and reading, once preprocessing no longer counts.
    pub fn true_cost_s(&self) -> f64 {
        self.training_s().max(self.samples / self.source_rate)
    }

    /// Equation 7: sample I/O with a distributed cache.
    pub fn distributed_cache_s(&self, cache: Cache) -> f64 {
        let remote = (self.hosts - 1.0) / self.hosts;
        self.uncached_s(cache) + cache.share * self.samples / cache.rate * remote
    }

    /// Equation 8: sample I/O of locality-aware loading, where `balance` is the share of samples that move between
    /// hosts to even out the local batches.
    pub fn locality_aware_s(&self, cache: Cache, balance: f64) -> f64 {
        self.uncached_s(cache) + cache.share * self.samples / cache.rate * balance
    }

    fn uncached_s(&self, cache: Cache) -> f64 {
        (1.0 - cache.share) * self.samples / self.source_rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: Epoch = Epoch {
        samples: 1200.0,
        hosts: 4.0,
        train_rate: 10.0,
        source_rate: 20.0,
        preprocess_rate: 30.0,
    };

    #[test]
    fn follows_the_equations() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} is not {b}");
        close(EPOCH.training_s(), 30.0);
        close(EPOCH.loading_s(), 70.0);
        close(EPOCH.true_cost_s(), 60.0);
        let half = Cache {
            share: 0.5,
            rate: 100.0,
        };
        close(EPOCH.distributed_cache_s(half), 34.5);
        close(EPOCH.locality_aware_s(half, 0.05), 30.3);
    }

    #[test]
    fn training_dominates_up_to_r_over_v_hosts() {
        let at = |hosts| Epoch { hosts, ..EPOCH };
        let waits = |hosts| at(hosts).true_cost_s() > at(hosts).training_s();
        assert_eq!([1.0, 2.0, 3.0].map(waits), [false, false, true]);
    }
}
