use ferroute_netlink::{Attributes, Batch, Messages};

use super::*;

const KIND: u16 = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_NEW);

/// Builds messages for the entry of a UDP client 10.1.0.9:4000 that uses Service 10.96.0.10:53 and reaches 10.0.0.1:5300.
#[derive(Clone, Copy)]
struct EntryMessage {
    kind: u16,
    family: i32,
    protocol: u8,
    with_reply: bool,
    with_ports: bool,
    with_id: bool,
}

impl Default for EntryMessage {
    fn default() -> Self {
        Self { kind: KIND, family: libc::AF_INET, protocol: 17, with_reply: true, with_ports: true, with_id: true }
    }
}

impl EntryMessage {
    fn encode(self) -> Batch {
        let mut batch = Batch::new();
        let mut message = batch.message(self.kind, 0, &nfnetlink::header(self.family as u8, 0, 0));
        self.put_tuple(&mut message, CTA_TUPLE_ORIG, ["10.1.0.9:4000", "10.96.0.10:53"]);
        if self.with_reply {
            self.put_tuple(&mut message, CTA_TUPLE_REPLY, ["10.0.0.1:5300", "10.1.0.9:4000"]);
        }
        message.put_u32_be(CTA_STATUS, 0x188);
        if self.with_id {
            message.put_u32_be(CTA_ID, 77);
        }
        drop(message);
        batch
    }

    fn put_tuple(self, message: &mut Writer<'_>, kind: u16, addresses: [&str; 2]) {
        let [source, destination] = addresses.map(|address| address.parse::<SocketAddr>().unwrap());
        let mut tuple = message.nest(kind);
        let mut ip = tuple.nest(CTA_TUPLE_IP);
        ip.put_ip(CTA_IP_V4_SRC, source.ip());
        ip.put_ip(CTA_IP_V4_DST, destination.ip());
        drop(ip);
        let mut transport = tuple.nest(CTA_TUPLE_PROTO);
        transport.put_u8(CTA_PROTO_NUM, self.protocol);
        if self.with_ports {
            transport.put_u16_be(CTA_PROTO_SRC_PORT, source.port());
            transport.put_u16_be(CTA_PROTO_DST_PORT, destination.port());
        }
    }

    fn parse(self) -> Result<Option<Entry>, Malformed> {
        let batch = self.encode();
        let message = Messages::new(batch.as_bytes().unwrap()).next().unwrap()?;
        ListedEntry::parse(message, IpFamily::V4, Some(Protocol::Udp))
            .map(|listed| listed.map(|listed| listed.connection.entry))
    }
}

#[test]
fn entries_of_other_families_and_protocols_are_ignored() {
    let message = EntryMessage::default();
    assert!(message.parse().unwrap().is_some());
    assert_eq!(EntryMessage { family: libc::AF_INET6, ..message }.parse(), Ok(None));
    assert_eq!(EntryMessage { protocol: 6, ..message }.parse(), Ok(None));
    assert_eq!(EntryMessage { kind: KIND + 2, ..message }.parse(), Ok(None));
    // ICMP has no ports; this must not end the dump.
    assert_eq!(EntryMessage { protocol: 1, with_ports: false, ..message }.parse(), Ok(None));
}

#[test]
fn entry_without_identifying_attributes_is_an_error() {
    let missing = |kind| Err(Malformed::Missing { message: KIND, kind });
    let message = EntryMessage::default();
    assert_eq!(EntryMessage { with_reply: false, ..message }.parse(), missing(CTA_TUPLE_REPLY));
    assert_eq!(EntryMessage { with_ports: false, ..message }.parse(), missing(CTA_TUPLE_PROTO));
    assert_eq!(EntryMessage { with_id: false, ..message }.parse(), missing(CTA_ID));
}

#[test]
fn delete_key_repeats_the_received_bytes() {
    let listed = EntryMessage::default().encode();
    let message = Messages::new(listed.as_bytes().unwrap()).next().unwrap().unwrap();
    let entry = ListedEntry::parse(message, IpFamily::V4, Some(Protocol::Udp)).unwrap().unwrap();
    let mut batch = Batch::new();
    entry.write_key(&mut batch.message(KIND, 0, &[]));
    let written = Messages::new(batch.as_bytes().unwrap()).next().unwrap().unwrap();
    let key = |attributes: Attributes<'_>| -> Vec<(u16, Vec<u8>)> {
        let attributes = attributes.map(|attribute| attribute.unwrap());
        let key = attributes.filter(|attribute| [CTA_TUPLE_ORIG, CTA_ID].contains(&attribute.kind));
        key.map(|attribute| (attribute.kind, attribute.payload.to_vec())).collect()
    };
    assert_eq!(key(Attributes::new(written.payload)), key(Attributes::new(&message.payload[4..])));
    assert_eq!(Attributes::new(written.payload).count(), 2);
}
