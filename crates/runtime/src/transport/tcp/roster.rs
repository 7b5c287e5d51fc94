//! The roster as it is sent: where ranks listen.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use foresee_core::ids::Rank;

use super::frame::ROSTER_BYTES_MAX;

/// Bytes of an entry: rank, port, address. An address of the older kind is sent as one of the newer that stands for it.
const ENTRY_BYTES: usize = 4 + 2 + 16;

/// Entries of one frame.
pub(super) const ENTRIES_MAX: usize = ROSTER_BYTES_MAX / ENTRY_BYTES;

/// `near` is where who is told reaches this host: what is known here by an address that only this host has is there.
pub(super) fn encode(entries: &[(Rank, SocketAddr)], near: Option<IpAddr>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len() * ENTRY_BYTES);
    for (rank, address) in entries {
        let ip = address.ip().to_canonical();
        let ip = if ip.is_loopback() {
            near.unwrap_or(ip)
        } else {
            ip
        };
        let ip = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        bytes.extend(rank.0.to_le_bytes());
        bytes.extend(address.port().to_le_bytes());
        bytes.extend(ip.octets());
    }
    bytes
}

/// What was sent, as far as it makes sense.
pub(super) fn decode(bytes: &[u8], world: u32) -> Vec<(Rank, SocketAddr)> {
    let entry = |entry: &[u8]| {
        let rank = u32::from_le_bytes(entry[..4].try_into().ok()?);
        let port = u16::from_le_bytes(entry[4..6].try_into().ok()?);
        let octets: [u8; 16] = entry[6..].try_into().ok()?;
        let ip = IpAddr::V6(Ipv6Addr::from(octets)).to_canonical();
        (rank < world).then_some((Rank(rank), SocketAddr::new(ip, port)))
    };
    bytes.chunks_exact(ENTRY_BYTES).filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_was_and_names_this_host_as_others_see_it() {
        let entry = |rank, text: &str| (Rank(rank), text.parse::<SocketAddr>().unwrap());
        let entries = [
            entry(1, "10.0.0.2:5"),
            entry(2, "[fe80::3]:70"),
            entry(3, "127.0.0.1:9"),
        ];
        assert_eq!(decode(&encode(&entries, None), 4), entries);
        let near = Some("10.0.0.1".parse().unwrap());
        let seen = decode(&encode(&entries, near), 4);
        assert_eq!(seen[2], entry(3, "10.0.0.1:9"));
        assert_eq!(decode(&encode(&entries, None), 2).len(), 1);
    }
}
