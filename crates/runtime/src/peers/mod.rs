//! What a rank remembers of its dealings with the others: [`Asked`], the asker's book of requests under way, [`Parked`], the
//! holder's book of requests that wait for a sample, and [`Bringers`], who is to bring a sample to its home. All are plain
//! values: no clock, no lock, no I/O. Time comes in as a call (`expired`), messages as arguments, and what is to be done
//! comes out.
//!
//! The life of a request:
//!
//! ```text
//! asker                                       holder
//! Asked::ask ------------- Ask -------------> has it: answers at once
//!    |                                        expects it: Parked::park -> Parked | Busy
//!    |                                        else: will not come
//! Asked::answered <------- Answer ----------- Parked::take, when it has come or never will
//!    -> Came | Refused | Ignored
//! Asked::expired (the trainer stood at one of the rank's samples for too long)
//!    -> all that is asked of the rank, given up; it is mute until Asked::heard
//! ```

mod asked;
mod bringers;
mod parked;

pub use self::asked::{Answered, Asked, Counts, NotAsked, Request};
pub use self::bringers::Bringers;
pub use self::parked::{Parked, Parking, Waiting};
