use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use super::{
    Answer, Change, End, Ends, Seen,
    ends::{agree, shares_agree},
};

/// How what becomes of a packet from `client` differs from what should; nothing if it does not.
pub(super) fn changes(client: IpAddr, wanted: &Ends, found: &Ends) -> Vec<Change> {
    if agree(wanted, found) {
        return Vec::new();
    }
    let (Some(wanted_served), Some(found_served)) = (served(wanted), served(found)) else {
        return vec![Change::Answer { wanted: answer(wanted), found: answer(found) }];
    };
    let mut changes = Vec::new();
    let endpoints = |served: &Served| served.keys().copied().collect::<BTreeSet<_>>();
    let (wanted_endpoints, found_endpoints) = (endpoints(&wanted_served), endpoints(&found_served));
    if wanted_endpoints == found_endpoints {
        changes.extend(most_unlike(&wanted_served, &found_served));
    } else {
        changes.push(Change::Endpoints {
            missing: wanted_endpoints.difference(&found_endpoints).copied().collect(),
            extra: found_endpoints.difference(&wanted_endpoints).copied().collect(),
        });
    }
    let seen = |share: &Share| if share.from == client { Seen::Client } else { Seen::Node };
    let sources =
        wanted_served.iter().filter_map(|(endpoint, wanted)| Some((seen(wanted), seen(found_served.get(endpoint)?))));
    let unlike: BTreeSet<(Seen, Seen)> = sources.filter(|(wanted, found)| wanted != found).collect();
    changes.extend(unlike.into_iter().map(|(wanted, found)| Change::Source { wanted, found }));
    changes
}

/// What endpoints get: by address and port.
type Served = BTreeMap<SocketAddr, Share>;

struct Share {
    from: IpAddr,
    share: f64,
}

/// The endpoints that a packet can get to; `None` if it can also come to another end.
fn served(ends: &Ends) -> Option<Served> {
    let each = ends.iter().map(|(end, share)| match end {
        End::Delivered { to, from, .. } => Some((*to, Share { from: *from, share: *share })),
        _ => None,
    });
    each.collect()
}

/// The endpoint of which the share differs most.
fn most_unlike(wanted: &Served, found: &Served) -> Option<Change> {
    let pairs =
        wanted.iter().filter_map(|(endpoint, wanted)| Some((endpoint, wanted.share, found.get(endpoint)?.share)));
    let unlike = pairs.filter(|(_, wanted, found)| !shares_agree(*wanted, *found));
    let distance = |(_, wanted, found): &(&SocketAddr, f64, f64)| (wanted - found).abs();
    let most = unlike.max_by(|one, other| distance(one).total_cmp(&distance(other)));
    most.map(|(endpoint, wanted, found)| Change::Shares { endpoint: *endpoint, wanted, found })
}

fn answer(ends: &Ends) -> Answer {
    if let Some(served) = served(ends) {
        return Answer::Served(served.len());
    }
    match ends.keys().collect::<Vec<_>>().as_slice() {
        [End::Refused] => Answer::Refused,
        [End::Dropped] => Answer::Dropped,
        [End::Untouched] => Answer::Ignored,
        [End::NoRoute] => Answer::Unreachable,
        _ => Answer::Mixed,
    }
}
