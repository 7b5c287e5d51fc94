//! The staging buffer is filled ahead from the source and nothing is kept: double buffering and `tf.data`.

use super::{Brief, Delivery, Plan, Policy, Unsupported};

pub(super) struct StagingBuffer;

impl Policy for StagingBuffer {
    fn name(&self) -> &'static str {
        "staging-buffer"
    }

    fn plan(&self, brief: &Brief) -> Result<Plan, Unsupported> {
        Ok(Plan::cacheless(brief, Delivery::Ahead))
    }
}
