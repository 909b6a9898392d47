//! What several frontends or service ports have in common: chains, affinities, addresses.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use ferroute_core::Protocol;

use super::{
    Context, SetId,
    counts::Counts,
    elements::{Placed, View},
    fixed::fixed_chains,
    kind::Kind,
    record::Record,
};
use crate::model::{ChainWithRules, Change, Class, Element, Name, SetWord, Transaction, Value, Verdict};

/// See the module's text. Everything is counted; the first user makes it, the last one removes it.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared {
    /// Classes, by the map from which packets are sent to their chains.
    classes: Counts<(SetId, Class)>,
    /// Chains, each by the class that it is named after: one may be there just because another leads to it.
    chains: Counts<Class>,
    timeouts: Counts<u32>,
    cluster_ips: Counts<IpAddr>,
    hairpins: Counts<(SocketAddr, Protocol)>,
    /// Affinities whose sets and rules are in force.
    declared: BTreeSet<u32>,
    /// Chains that nothing leads to any more but that may be there.
    garbage: BTreeSet<Class>,
}

impl Shared {
    /// What a frontend needs.
    pub(super) fn acquire(&mut self, view: View<'_>, context: &Context, transaction: &mut Transaction) {
        for (map, class) in entries(view) {
            if !self.classes.acquire((map, class)) {
                continue;
            }
            for chain in chains_of(class) {
                // One that waits for its removal is as good as new.
                if self.chains.acquire(chain) && !self.garbage.remove(&chain) {
                    transaction.add_chain(chain_for(chain, context));
                }
            }
            transaction.push(add((map, dispatch(class))));
        }
        if let Some(seconds) = view.affinity()
            && self.timeouts.acquire(seconds)
            && !self.declared.contains(&seconds)
        {
            // Its elements come in the same transaction; rules that use it follow at the end.
            transaction.push(Change::AddSet(SetId::Sticky(seconds).declare(context)));
        }
    }

    /// The opposite of [`Shared::acquire`].
    pub(super) fn release(&mut self, view: View<'_>, transaction: &mut Transaction) {
        for (map, class) in entries(view) {
            if !self.classes.release(&(map, class)) {
                continue;
            }
            transaction.push(delete((map, dispatch(class))));
            for chain in chains_of(class) {
                if self.chains.release(&chain) {
                    self.garbage.insert(chain);
                }
            }
        }
        if let Some(seconds) = view.affinity()
            && self.timeouts.release(&seconds)
            && !self.declared.contains(&seconds)
        {
            transaction.push(Change::DeleteSet(SetId::Sticky(seconds).name(), SetWord::Set));
        }
    }

    /// What a service port needs as a whole.
    pub(super) fn acquire_record(&mut self, record: &Record, protocol: Protocol, transaction: &mut Transaction) {
        if self.cluster_ips.acquire(record.cluster_ip) {
            transaction.push(add(cluster_ip(record.cluster_ip)));
        }
        for socket in record.own.iter() {
            if self.hairpins.acquire((socket, protocol)) {
                transaction.push(add(hairpin(socket, protocol)));
            }
        }
    }

    /// The opposite of [`Shared::acquire_record`].
    pub(super) fn release_record(&mut self, record: &Record, protocol: Protocol, transaction: &mut Transaction) {
        if self.cluster_ips.release(&record.cluster_ip) {
            transaction.push(delete(cluster_ip(record.cluster_ip)));
        }
        for socket in record.own.iter() {
            if self.hairpins.release(&(socket, protocol)) {
                transaction.push(delete(hairpin(socket, protocol)));
            }
        }
    }

    /// Brings the rules that remember clients in line with the affinities that there are. To be called at the end of
    /// each transaction.
    pub(super) fn settle(&mut self, context: &Context, transaction: &mut Transaction) {
        let wanted: BTreeSet<u32> = self.timeouts.iter().copied().collect();
        if wanted == self.declared {
            return;
        }
        let gone: Vec<u32> = self.declared.difference(&wanted).copied().collect();
        let old = fixed_chains(context, self.declared.iter().copied());
        self.declared = wanted;
        let new = fixed_chains(context, self.declared.iter().copied());
        for (old, new) in old.into_iter().zip(new).filter(|(old, new)| old != new) {
            transaction.replace_rules(&old.chain.name, new.rules);
        }
        transaction
            .changes
            .extend(gone.into_iter().map(|seconds| Change::DeleteSet(SetId::Sticky(seconds).name(), SetWord::Set)));
    }

    /// Chains that can be removed now that the transactions so far have been carried out.
    pub(super) fn garbage(&self) -> impl Iterator<Item = Name> {
        self.garbage.iter().map(|class| chain_name(*class))
    }

    /// They have been removed.
    pub(super) fn garbage_is_gone(&mut self) {
        self.garbage.clear();
    }

    /// Affinities whose sets and rules are in force, in seconds.
    pub(super) fn timeouts(&self) -> impl Iterator<Item = u32> + Clone {
        self.declared.iter().copied()
    }

    /// The chains in use, those that others lead to first.
    pub(super) fn chains(&self, context: &Context) -> Vec<ChainWithRules> {
        in_order(self.chains.iter().copied(), context)
    }

    /// The same with those that wait for their removal, any of which may be used again before.
    pub(super) fn all_chains(&self, context: &Context) -> Vec<ChainWithRules> {
        in_order(self.chains.iter().chain(&self.garbage).copied(), context)
    }

    /// All elements that are counted here.
    pub(super) fn elements(&self) -> impl Iterator<Item = Placed> {
        let dispatch = self.classes.iter().map(|(map, class)| (*map, dispatch(*class)));
        let cluster_ips = self.cluster_ips.iter().map(|address| cluster_ip(*address));
        let hairpins = self.hairpins.iter().map(|(socket, protocol)| hairpin(*socket, *protocol));
        dispatch.chain(cluster_ips).chain(hairpins)
    }
}

/// The classes of a frontend, each with the map from which its packets are sent to the class's chain.
fn entries(view: View<'_>) -> impl Iterator<Item = (SetId, Class)> {
    let (main, local) = view.classes();
    let main = main.map(|class| (SetId::Dispatch, class));
    main.into_iter().chain(local.map(|class| (SetId::LocalDispatch, class)))
}

fn in_order(classes: impl Iterator<Item = Class>, context: &Context) -> Vec<ChainWithRules> {
    let mut classes: Vec<Class> = classes.collect();
    classes.sort_unstable_by_key(|class| (leads_to(*class).is_some(), *class));
    classes.into_iter().map(|class| chain_for(class, context)).collect()
}

fn kind_of(class: Class) -> (Kind, usize) {
    Kind::of_class(class).expect("bug: only classes of kinds are counted")
}

/// The class of the chain that a class's chain leads to.
fn leads_to(class: Class) -> Option<Class> {
    let (kind, endpoints) = kind_of(class);
    kind.leads_to().map(|kind| kind.class(endpoints))
}

/// The chains that a class needs, the one that another leads to first.
fn chains_of(class: Class) -> impl Iterator<Item = Class> {
    leads_to(class).into_iter().chain([class])
}

fn chain_for(class: Class, context: &Context) -> ChainWithRules {
    let (kind, endpoints) = kind_of(class);
    kind.chain(endpoints, context)
}

fn chain_name(class: Class) -> Name {
    let (kind, endpoints) = kind_of(class);
    kind.chain_name(endpoints)
}

fn dispatch(class: Class) -> Element {
    Element::new([class.into()]).verdict(Verdict::Goto(chain_name(class)))
}

fn cluster_ip(address: IpAddr) -> Placed {
    (SetId::ClusterIps, Element::new([address.into()]))
}

fn hairpin(socket: SocketAddr, protocol: Protocol) -> Placed {
    let address = socket.ip().into();
    (SetId::Hairpin, Element::new([address, address, Value::protocol(protocol), Value::Port(socket.port())]))
}

fn add((set, element): Placed) -> Change {
    Change::AddElement(set.name(), element)
}

fn delete((set, element): Placed) -> Change {
    Change::DeleteElement(set.name(), element)
}
