use ferroute_netlink::{Attributes, Batch, Messages};

use super::*;

const KIND: u16 = nfnetlink::kind(nfnetlink::CONNTRACK, NEW);

/// What of an entry is written; the rest is that of a UDP flow from 10.1.0.9:4000 to 10.96.0.10:53, sent to 10.0.0.1:5300.
#[derive(Clone, Copy)]
struct Entry {
    kind: u16,
    family: i32,
    protocol: u8,
    with_reply: bool,
    with_ports: bool,
    with_id: bool,
}

impl Default for Entry {
    fn default() -> Self {
        Self { kind: KIND, family: libc::AF_INET, protocol: 17, with_reply: true, with_ports: true, with_id: true }
    }
}

impl Entry {
    fn write(self) -> Batch {
        let mut batch = Batch::new();
        let mut message = batch.message(self.kind, 0, &nfnetlink::header(self.family as u8, 0, 0));
        self.direction(&mut message, TUPLE_ORIGINAL, ["10.1.0.9:4000", "10.96.0.10:53"]);
        if self.with_reply {
            self.direction(&mut message, TUPLE_REPLY, ["10.0.0.1:5300", "10.1.0.9:4000"]);
        }
        message.put_u32_be(3, 0x188);
        if self.with_id {
            message.put_u32_be(ID, 77);
        }
        drop(message);
        batch
    }

    fn direction(self, message: &mut Writer<'_>, kind: u16, ends: [&str; 2]) {
        let [source, destination] = ends.map(|end| end.parse::<SocketAddr>().unwrap());
        let mut tuple = message.nest(kind);
        let mut addresses = tuple.nest(TUPLE_IP);
        addresses.put_ip(IPV4_SOURCE, source.ip());
        addresses.put_ip(IPV4_DESTINATION, destination.ip());
        drop(addresses);
        let mut transport = tuple.nest(TUPLE_PROTOCOL);
        transport.put_u8(PROTOCOL_NUMBER, self.protocol);
        if self.with_ports {
            transport.put_u16_be(SOURCE_PORT, source.port());
            transport.put_u16_be(DESTINATION_PORT, destination.port());
        }
    }

    fn parse(self) -> Result<Option<Flow>, Malformed> {
        let batch = self.write();
        let message = Messages::new(batch.as_bytes().unwrap()).next().unwrap()?;
        FlowEntry::parse(message, IpFamily::V4, Protocol::Udp).map(|entry| entry.map(|entry| entry.flow))
    }
}

#[test]
fn only_flows_of_the_family_and_protocol_are_read() {
    assert!(Entry::default().parse().unwrap().is_some());
    assert_eq!(Entry { family: libc::AF_INET6, ..Entry::default() }.parse(), Ok(None));
    assert_eq!(Entry { protocol: 6, ..Entry::default() }.parse(), Ok(None));
    assert_eq!(Entry { kind: KIND + 2, ..Entry::default() }.parse(), Ok(None));
    // ICMP has no ports; that is no reason to give up on the rest of the table.
    assert_eq!(Entry { protocol: 1, with_ports: false, ..Entry::default() }.parse(), Ok(None));
}

#[test]
fn an_entry_without_what_tells_it_from_others_is_an_error() {
    let missing = |kind| Err(Malformed::Missing { message: KIND, kind });
    assert_eq!(Entry { with_reply: false, ..Entry::default() }.parse(), missing(TUPLE_REPLY));
    assert_eq!(Entry { with_ports: false, ..Entry::default() }.parse(), missing(TUPLE_PROTOCOL));
    assert_eq!(Entry { with_id: false, ..Entry::default() }.parse(), missing(ID));
}

#[test]
fn a_flow_is_named_by_the_very_bytes_that_the_kernel_has_sent() {
    let listed = Entry::default().write();
    let message = Messages::new(listed.as_bytes().unwrap()).next().unwrap().unwrap();
    let entry = FlowEntry::parse(message, IpFamily::V4, Protocol::Udp).unwrap().unwrap();
    let mut batch = Batch::new();
    entry.write_identity(&mut batch.message(KIND, 0, &[]));
    let written = Messages::new(batch.as_bytes().unwrap()).next().unwrap().unwrap();
    let named = |attributes: Attributes<'_>| -> Vec<(u16, Vec<u8>)> {
        let attributes = attributes.map(|attribute| attribute.unwrap());
        let named = attributes.filter(|attribute| [TUPLE_ORIGINAL, ID].contains(&attribute.kind));
        named.map(|attribute| (attribute.kind, attribute.payload.to_vec())).collect()
    };
    assert_eq!(named(Attributes::new(written.payload)), named(Attributes::new(&message.payload[4..])));
    assert_eq!(Attributes::new(written.payload).count(), 2);
}
