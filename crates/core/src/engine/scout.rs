//! Looks at what a rank will need in its next steps, ahead of its staging buffer, and touches nothing. Each access is drawn
//! once and remembered until the staging threads have come to it.

use std::collections::VecDeque;

use super::ahead::{Ahead, Upcoming};
use super::{Engine, Outlook};
use crate::model::Origin;
use crate::threads::Need;

/// What lies before the staging threads of one rank.
pub struct Scout {
    ahead: Ahead,
    seen: VecDeque<Upcoming>,
    /// Accesses that lie before the first of them.
    passed: u64,
}

impl Engine {
    /// One that starts where the staging threads are.
    pub fn scout(&self) -> Scout {
        Scout {
            ahead: self.ahead.clone(),
            seen: VecDeque::new(),
            passed: self.ahead.passed(),
        }
    }

    /// What the next so many accesses beyond the staging threads need, from where they would be read now. What another
    /// rank is to bring counts as brought.
    pub fn need(&self, scout: &mut Scout, accesses: usize, outlook: &mut impl Outlook) -> Need {
        scout.look(self.ahead.passed(), accesses);
        let mut need = Need::default();
        for access in scout.seen.iter().take(accesses) {
            need.add(self.comes_from(*access, outlook), access.bytes);
        }
        need
    }

    fn comes_from(&self, access: Upcoming, outlook: &mut impl Outlook) -> Origin {
        if let Some(tier) = self.holdings.get(access.sample) {
            return Origin::Tier(tier);
        }
        if let Some(origin) = self.elsewhere(access, outlook) {
            return origin;
        }
        let expected = access.home.filter(|_| self.keeper.expects(access, false));
        match (self.keeper.homes(), expected) {
            (Some(homes), Some(home)) => homes.as_seen_here(home),
            _ => Origin::Source,
        }
    }
}

impl Scout {
    fn look(&mut self, passed: u64, accesses: usize) {
        while self.passed < passed && self.seen.pop_front().is_some() {
            self.passed += 1;
        }
        while self.seen.len() < accesses || self.passed < passed {
            let Some(next) = self.ahead.peek([None; 2]) else {
                return;
            };
            self.ahead.advance();
            if self.passed < passed {
                self.passed += 1;
            } else {
                self.seen.push_back(next);
            }
        }
    }
}
