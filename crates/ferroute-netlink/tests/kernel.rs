//! Exchanges with the kernel, in network namespaces.

use std::{net::IpAddr, ops::ControlFlow};

use ferroute_netlink::{
    Batch, Consistency, Drained, Error, Message, Oversize, Protocol, Refusal, Request, Socket, Subscription, flags,
    nf_tables, nfnetlink,
};
use ferroute_testing::NetNs;

// include/uapi/linux/netfilter/nf_tables.h
const NEWTABLE: u16 = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, libc::NFT_MSG_NEWTABLE as u8);
const GETTABLE: u16 = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, libc::NFT_MSG_GETTABLE as u8);
const NEWCHAIN: u16 = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, libc::NFT_MSG_NEWCHAIN as u8);
const GETCHAIN: u16 = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, libc::NFT_MSG_GETCHAIN as u8);
const DELCHAIN: u16 = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, libc::NFT_MSG_DELCHAIN as u8);
const GETGEN: u16 = nfnetlink::kind(nfnetlink::NFNL_SUBSYS_NFTABLES, libc::NFT_MSG_GETGEN as u8);
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_USERDATA: u16 = 12;
const NFTA_GEN_ID: u16 = 1;
const INET: u8 = libc::NFPROTO_INET as u8;

fn begin(batch: &mut Batch) {
    batch.message(nfnetlink::NFNL_MSG_BATCH_BEGIN, 0, &nfnetlink::header(0, 0, nfnetlink::NFNL_SUBSYS_NFTABLES.into()));
}

fn end(batch: &mut Batch) {
    batch.message(nfnetlink::NFNL_MSG_BATCH_END, 0, &nfnetlink::header(0, 0, nfnetlink::NFNL_SUBSYS_NFTABLES.into()));
}

fn table(batch: &mut Batch, name: &str, flags: u16) {
    batch.message(NEWTABLE, flags, &nfnetlink::header(INET, 0, 0)).put_str(NFTA_TABLE_NAME, name);
}

fn chain(batch: &mut Batch, kind: u16, flags: u16, table: &str, name: &str) {
    let mut message = batch.message(kind, flags, &nfnetlink::header(INET, 0, 0));
    message.put_str(NFTA_TABLE_NAME, table);
    message.put_str(NFTA_CHAIN_NAME, name);
}

/// Returns a transaction that creates a table and `count` chains.
fn chains(name: &str, count: usize) -> Batch {
    let mut batch = Batch::new();
    begin(&mut batch);
    table(&mut batch, name, flags::NLM_F_CREATE);
    for number in 0..count {
        chain(&mut batch, NEWCHAIN, flags::NLM_F_CREATE, name, &format!("chain-{number}"));
    }
    table(&mut batch, name, flags::NLM_F_ACK);
    end(&mut batch);
    batch
}

fn netfilter(namespace: &NetNs) -> Socket {
    namespace.run(|| Socket::open(Protocol::Netfilter).expect("the kernel has netfilter"))
}

fn count(socket: &mut Socket, kind: u16) -> usize {
    let mut request = Request::new(kind, 0, &nfnetlink::header(INET, 0, 0));
    socket.collect::<_, Error>(&mut request, |_| Ok(Some(()))).expect("objects can be listed").len()
}

fn generation(socket: &mut Socket) -> u32 {
    let mut request = Request::new(GETGEN, 0, &nfnetlink::header(0, 0, 0));
    let read = |message: Message<'_>| -> Result<u32, Error> {
        let (_, mut attributes) = message.split_header::<4>()?;
        let id = attributes.find(|attribute| attribute.is_ok_and(|attribute| attribute.kind == NFTA_GEN_ID));
        Ok(id.ok_or(message.missing(NFTA_GEN_ID))??.u32_be()?)
    };
    socket.get(&mut request, read).expect("the kernel has nf_tables").expect("the kernel returns its generation")
}

#[test]
fn transaction_is_applied_and_listed() {
    let namespace = NetNs::new();
    let mut socket = netfilter(&namespace);
    let before = generation(&mut socket);
    assert!(socket.send_batch(&mut chains("t", 2)).unwrap().is_empty());
    assert_eq!(generation(&mut socket), before + 1);
    let listed = namespace.command("nft", &["list", "table", "inet", "t"]);
    assert!(listed.contains("chain chain-0") && listed.contains("chain chain-1"), "{listed}");
    assert_eq!((count(&mut socket, GETTABLE), count(&mut socket, GETCHAIN)), (1, 2));
}

#[test]
fn refused_messages_are_reported_with_index_and_offset_and_nothing_is_applied() {
    let namespace = NetNs::new();
    let mut socket = netfilter(&namespace);
    let mut batch = Batch::new();
    begin(&mut batch);
    table(&mut batch, "t", flags::NLM_F_CREATE);
    chain(&mut batch, DELCHAIN, 0, "t", "nowhere");
    table(&mut batch, "t", flags::NLM_F_CREATE | flags::NLM_F_EXCL | flags::NLM_F_ACK);
    end(&mut batch);
    let refusals = socket.send_batch(&mut batch).unwrap();
    // Offsets: 16 bytes of netlink header, 4 of netfilter's header, and 8 of the table's name.
    let missing = Refusal { index: 2, kind: DELCHAIN, errno: libc::ENOENT, offset: Some(28), message: None };
    let existing = Refusal { index: 3, kind: NEWTABLE, errno: libc::EEXIST, offset: Some(20), message: None };
    assert_eq!(refusals.as_slice(), [missing, existing]);
    assert!(refusals.as_slice()[0].is_not_found() && refusals.as_slice()[1].is_exists());
    assert!(refusals.into_result().unwrap_err().is_not_found());
    assert_eq!(count(&mut socket, GETTABLE), 0);
}

#[test]
fn transaction_for_an_older_generation_is_refused() {
    let namespace = NetNs::new();
    let mut socket = netfilter(&namespace);
    let seen = generation(&mut socket);
    let transaction = |required| {
        let mut batch = Batch::new();
        nf_tables::begin(&mut batch, Some(required));
        table(&mut batch, "t", flags::NLM_F_CREATE);
        nf_tables::end(&mut batch);
        batch
    };
    namespace.command("nft", &["add", "table", "inet", "other"]);
    let refusals = socket.send_batch(&mut transaction(seen)).unwrap();
    let begin = nfnetlink::NFNL_MSG_BATCH_BEGIN;
    let outdated = Refusal { index: 0, kind: begin, errno: libc::ERESTART, offset: None, message: None };
    assert_eq!(refusals.as_slice(), [outdated]);
    assert!(refusals.into_result().unwrap_err().is_outdated());
    assert_eq!(count(&mut socket, GETTABLE), 1);

    let seen = generation(&mut socket);
    assert!(socket.send_batch(&mut transaction(seen)).unwrap().is_empty());
    assert_eq!(count(&mut socket, GETTABLE), 2);
}

#[test]
fn batch_without_ack_is_an_error() {
    let mut socket = netfilter(&NetNs::new());
    let mut batch = Batch::new();
    // The kernel drops messages without netfilter's header.
    drop(batch.message(nfnetlink::NFNL_MSG_BATCH_BEGIN, 0, &[]));
    let error = socket.send_batch(&mut batch).unwrap_err();
    assert!(matches!(error, Error::UnansweredBatch { messages: 1 }), "{error}");
    assert_eq!(count(&mut socket, GETTABLE), 0);
}

#[test]
fn messages_outside_a_transaction_are_independent_and_can_be_sent_again() {
    let namespace = NetNs::new();
    let mut socket = namespace.run(|| Socket::open(Protocol::Route).unwrap());
    let mut batch = Batch::new();
    // RTM_SETLINK: sets device 900, which does not exist, and `lo` down.
    for (device, change) in [(900_i32, libc::IFF_UP), (1, libc::IFF_UP)] {
        let mut header = [0; 16];
        header[4..8].copy_from_slice(&device.to_ne_bytes());
        header[12..].copy_from_slice(&change.to_ne_bytes());
        drop(batch.message(libc::RTM_SETLINK, 0, &header));
    }
    for _ in 0..2 {
        let refusals = socket.send_batch(&mut batch).unwrap();
        let refused: Vec<_> = refusals.as_slice().iter().map(|refusal| (refusal.index, refusal.errno)).collect();
        assert_eq!(refused, [(0, libc::ENODEV)]);
        assert!(!namespace.command("ip", &["link", "show", "lo"]).contains(",UP"));
    }
}

#[test]
fn transaction_without_an_end_is_acknowledged_but_not_applied() {
    let mut socket = netfilter(&NetNs::new());
    let mut batch = Batch::new();
    begin(&mut batch);
    table(&mut batch, "t", flags::NLM_F_CREATE | flags::NLM_F_ACK);
    assert!(socket.send_batch(&mut batch).unwrap().is_empty());
    assert_eq!(count(&mut socket, GETTABLE), 0);
}

#[test]
fn empty_batch_succeeds() {
    assert!(netfilter(&NetNs::new()).send_batch(&mut Batch::new()).unwrap().is_empty());
}

#[test]
fn batch_of_megabytes_is_sent() {
    let mut socket = netfilter(&NetNs::new());
    let mut batch = Batch::new();
    begin(&mut batch);
    table(&mut batch, "t", flags::NLM_F_CREATE);
    for number in 0..20_000 {
        let mut message = batch.message(NEWCHAIN, flags::NLM_F_CREATE, &nfnetlink::header(INET, 0, 0));
        message.put_str(NFTA_TABLE_NAME, "t");
        message.put_str(NFTA_CHAIN_NAME, &format!("chain-{number}"));
        message.put_bytes(NFTA_CHAIN_USERDATA, &[0; 240]);
    }
    table(&mut batch, "t", flags::NLM_F_ACK);
    end(&mut batch);
    assert!(batch.byte_length() > 5 << 20, "{}", batch.byte_length());
    assert!(socket.send_batch(&mut batch).unwrap().is_empty());
    assert_eq!(count(&mut socket, GETCHAIN), 20_000);
}

#[test]
fn batches_of_about_the_send_buffers_size_are_sent() {
    let namespace = NetNs::new();
    let limit: usize = std::fs::read_to_string("/proc/sys/net/core/wmem_default").unwrap().trim().parse().unwrap();
    for size in (limit - 64..=limit + 8).step_by(4) {
        let mut socket = namespace.run(|| Socket::open(Protocol::Route).unwrap());
        let mut batch = Batch::new();
        drop(batch.message(libc::NLMSG_NOOP as u16, 0, &vec![0; size - 16]));
        assert_eq!(batch.byte_length(), size);
        assert!(socket.send_batch(&mut batch).unwrap().is_empty());
    }
}

#[test]
fn overrun_by_refusals_is_reported_and_the_socket_remains_usable() {
    let mut socket = netfilter(&NetNs::new());
    assert!(socket.send_batch(&mut chains("t", 0)).unwrap().is_empty());
    let mut batch = Batch::new();
    begin(&mut batch);
    for _ in 0..100_000 {
        chain(&mut batch, DELCHAIN, flags::NLM_F_ACK, "t", "nowhere");
    }
    end(&mut batch);
    let refusals = socket.send_batch(&mut batch).unwrap();
    assert!(refusals.is_overrun() && refusals.as_slice().len() > 3_000, "{}", refusals.as_slice().len());
    assert!(refusals.as_slice().iter().enumerate().all(|(place, refusal)| refusal.index == place + 1));
    assert!(refusals.into_result().unwrap_err().is_not_found());
    assert_eq!(count(&mut socket, GETTABLE), 1);
}

#[test]
fn oversized_message_is_not_sent() {
    let mut socket = netfilter(&NetNs::new());
    let mut batch = chains("t", 1);
    batch.message(NEWCHAIN, 0, &[0; 4]).put_bytes(NFTA_CHAIN_USERDATA, &[0; 70_000]);
    let error = socket.send_batch(&mut batch).unwrap_err();
    assert!(matches!(error, Error::Oversize(Oversize::Attribute { message: 5, .. })), "{error}");
    assert_eq!(count(&mut socket, GETTABLE), 0);
}

#[test]
fn interrupted_dump_is_repeated() {
    let namespace = NetNs::new();
    let (mut reader, mut writer) = (netfilter(&namespace), netfilter(&namespace));
    assert!(writer.send_batch(&mut chains("t", 2_000)).unwrap().is_empty());
    let mut request = Request::new(GETCHAIN, 0, &nfnetlink::header(INET, 0, 0));
    let mut interrupted = false;
    let names = reader.collect::<_, Error>(&mut request, |_| {
        if !interrupted {
            assert!(writer.send_batch(&mut chains("u", 1)).unwrap().is_empty());
            interrupted = true;
        }
        Ok(Some(()))
    });
    assert_eq!(names.unwrap().len(), 2_001);
}

#[test]
fn dump_that_is_interrupted_repeatedly_is_an_error() {
    let namespace = NetNs::new();
    let (mut reader, mut writer) = (netfilter(&namespace), netfilter(&namespace));
    assert!(writer.send_batch(&mut chains("t", 2_000)).unwrap().is_empty());
    let mut request = Request::new(GETCHAIN, 0, &nfnetlink::header(INET, 0, 0));
    let mut seen = 0;
    let result = reader.collect::<(), Error>(&mut request, |_| {
        seen += 1;
        if seen % 1_000 == 0 {
            assert!(writer.send_batch(&mut chains(&format!("u{seen}"), 0)).unwrap().is_empty());
        }
        Ok(None)
    });
    assert!(matches!(result, Err(Error::Interrupted { kind: GETCHAIN, attempts: 5 })), "{result:?}");
}

#[test]
fn callback_error_ends_a_dump_and_the_socket_remains_usable() {
    #[derive(Debug)]
    enum Stop {
        Here,
        Netlink,
    }
    impl From<Error> for Stop {
        fn from(_: Error) -> Self {
            Self::Netlink
        }
    }
    let mut socket = netfilter(&NetNs::new());
    assert!(socket.send_batch(&mut chains("t", 2_000)).unwrap().is_empty());
    let mut request = Request::new(GETCHAIN, 0, &nfnetlink::header(INET, 0, 0));
    let mut calls = 0;
    let result = socket.dump(&mut request, |_| {
        calls += 1;
        if calls == 3 { Err(Stop::Here) } else { Ok(()) }
    });
    assert!(matches!(result, Err(Stop::Here)) && calls == 3, "{result:?} after {calls} calls");
    assert_eq!(count(&mut socket, GETCHAIN), 2_000);
}

#[test]
fn dump_ends_where_its_callback_breaks() {
    let namespace = NetNs::new();
    let mut socket = netfilter(&namespace);
    assert!(socket.send_batch(&mut chains("t", 2_000)).unwrap().is_empty());
    for wanted in [3, 5_000] {
        let socket = namespace.run(|| Socket::open(Protocol::Netfilter).unwrap());
        let mut request = Request::new(GETCHAIN, 0, &nfnetlink::header(INET, 0, 0));
        let mut calls = 0;
        let consistency = socket.dump_until(&mut request, |_| {
            calls += 1;
            Ok::<_, Error>(if calls == wanted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
        assert_eq!((consistency.unwrap(), calls), (Consistency::Consistent, wanted.min(2_000)));
    }
}

#[test]
fn request_for_a_missing_object_is_refused() {
    let mut socket = netfilter(&NetNs::new());
    let mut request = Request::new(GETTABLE, 0, &nfnetlink::header(INET, 0, 0));
    request.attributes().put_str(NFTA_TABLE_NAME, "nowhere");
    let error = socket.request_ack(&mut request).unwrap_err();
    assert!(error.is_not_found() && !error.is_exists() && !error.is_busy(), "{error}");
    assert_eq!(error.refusal().unwrap().offset, Some(20));
}

#[test]
fn missing_subsystem_is_distinguished_from_a_refusal() {
    let mut socket = netfilter(&NetNs::new());
    let mut is_missing = |subsystem| {
        let mut request = Request::new(nfnetlink::kind(subsystem, 1), 0, &nfnetlink::header(0, 0, 0));
        request.attributes().put_str(NFTA_TABLE_NAME, "nowhere");
        nfnetlink::is_subsystem_missing(&socket.request_ack(&mut request).unwrap_err())
    };
    assert!(is_missing(99));
    assert!(!is_missing(nfnetlink::NFNL_SUBSYS_ACCT));
}

#[test]
fn refusal_contains_the_kernels_message() {
    let mut socket = NetNs::new().run(|| Socket::open(Protocol::Route).unwrap());
    // RTM_GETLINK for a device name that is too long.
    let mut request = Request::new(libc::RTM_GETLINK, 0, &[0; 16]);
    request.attributes().put_str(libc::IFLA_IFNAME, "a-name-that-is-too-long-for-a-device");
    let error = socket.request_ack(&mut request).unwrap_err();
    assert!(error.refusal().unwrap().message.is_some(), "{error:?}");
}

#[test]
fn rtnetlink_lists_addresses() {
    let namespace = NetNs::new();
    namespace.command("ip", &["address", "add", "2001:db8::7/128", "dev", "lo"]);
    let mut socket = namespace.run(|| Socket::open(Protocol::Route).unwrap());
    let mut addresses = Vec::new();
    let consistency = socket.dump(&mut Request::new(libc::RTM_GETADDR, 0, &[0; 8]), |message| {
        let (_, attributes) = message.split_header::<8>()?;
        for attribute in attributes {
            let attribute = attribute?;
            if attribute.kind == libc::IFA_ADDRESS {
                addresses.push(attribute.ip()?);
            }
        }
        Ok::<(), Error>(())
    });
    addresses.sort_unstable();
    assert_eq!(consistency.unwrap(), Consistency::Consistent);
    assert_eq!(addresses, ["127.0.0.1", "::1", "2001:db8::7"].map(|text| text.parse::<IpAddr>().unwrap()));
}

#[test]
fn generic_netlink_families_reply() {
    // CTRL_CMD_GETFAMILY of the controller itself, by name (include/uapi/linux/genetlink.h).
    let mut socket = NetNs::new().run(|| Socket::open(Protocol::Generic).unwrap());
    let mut request = Request::new(0x10, 0, &[3, 1, 0, 0]);
    request.attributes().put_str(2, "nlctrl");
    let mut ids = Vec::new();
    let read = |message: Message<'_>| {
        let (_, attributes) = message.split_header::<4>()?;
        ids.extend(attributes.flatten().find(|attribute| attribute.kind == 1).map(|id| id.u16_ne()));
        Ok::<(), Error>(())
    };
    socket.request(&mut request, read).unwrap();
    assert_eq!(ids, [Ok(0x10)]);
}

#[test]
fn subscription_receives_later_changes_of_its_own_namespace() {
    let (namespace, other) = (NetNs::new(), NetNs::new());
    namespace.command("ip", &["address", "add", "192.0.2.1/32", "dev", "lo"]);
    let mut subscription = namespace.run(|| Subscription::open(Protocol::Route, &[libc::RTNLGRP_IPV4_IFADDR]).unwrap());
    other.command("ip", &["address", "add", "192.0.2.2/32", "dev", "lo"]);
    namespace.command("ip", &["address", "add", "2001:db8::1/128", "dev", "lo"]);
    assert_eq!(subscription.drain(|message| panic!("{message:?}")).unwrap(), Drained::Nothing);
    namespace.command("ip", &["address", "add", "192.0.2.3/32", "dev", "lo"]);
    namespace.command("ip", &["address", "delete", "192.0.2.1/32", "dev", "lo"]);
    let mut kinds = Vec::new();
    assert_eq!(subscription.drain(|message| kinds.push(message.kind)).unwrap(), Drained::Messages);
    assert_eq!(kinds, [libc::RTM_NEWADDR, libc::RTM_DELADDR]);
    assert_eq!(subscription.drain(|message| panic!("{message:?}")).unwrap(), Drained::Nothing);
}

#[test]
fn overrun_subscription_reports_lost_notifications() {
    let namespace = NetNs::new();
    let mut subscription = namespace.run(|| Subscription::open(Protocol::Route, &[libc::RTNLGRP_IPV4_IFADDR]).unwrap());
    let lines = |verb: &str| -> String {
        (0..2_000).map(|n| format!("address {verb} 10.0.{}.{}/32 dev lo\n", n / 250, n % 250)).collect()
    };
    namespace.feed("ip", &["-batch", "-"], &lines("add"));
    assert_eq!(subscription.drain(|_| ()).unwrap(), Drained::Overrun);
    assert_eq!(subscription.drain(|_| ()).unwrap(), Drained::Nothing);
    namespace.feed("ip", &["-batch", "-"], "address delete 10.0.0.1/32 dev lo");
    assert_eq!(subscription.drain(|_| ()).unwrap(), Drained::Messages);
}

#[test]
fn subscribing_to_an_unknown_group_is_an_error() {
    let error = Subscription::open(Protocol::Route, &[4_000_000]).unwrap_err();
    assert!(matches!(error, Error::Open { protocol: Protocol::Route, .. }), "{error}");
}
