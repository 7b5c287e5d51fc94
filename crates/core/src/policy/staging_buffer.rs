//! The staging buffer is filled ahead from the source and nothing is kept: double buffering and `tf.data`.

use super::{Brief, Part, Parts, Policy, Share, Unsupported};

pub(super) struct StagingBuffer;

impl Policy for StagingBuffer {
    fn name(&self) -> &'static str {
        "staging-buffer"
    }

    fn parts<'a>(&self, brief: &'a Brief, _: &'a [Share]) -> Result<Parts<'a>, Unsupported> {
        Ok(Box::new(|rank| Part::cacheless(brief, rank)))
    }
}
