//! Reading chains and rules.

use ferroute_core::{Heartbeat, IpFamily};
use ferroute_netlink::{Consistency, Error, Malformed, Message, Request, Socket, nf_tables::*, nfnetlink};

use super::{
    NativeRules, ReadError,
    decode::{self, KernelRule},
    tables::request,
};
use crate::{ChainHead, ChainName, Counters, Policy, Rule, SaveItem, TableName};

impl NativeRules {
    /// Reads tables and calls `add` with the chains of each, then with its rules chain by chain. Chains that `iptables` cannot
    /// name are left out.
    ///
    /// Rules of one chain are those of a single moment, even if other programs change rules meanwhile; those of two chains
    /// need not be.
    ///
    /// # Errors
    /// If the kernel refuses, or other programs change rules all the time.
    pub(crate) fn read(&self, tables: &[TableName], add: &mut dyn FnMut(TableName, SaveItem)) -> Result<(), ReadError> {
        for table in tables {
            self.read_table(*table, &mut |item| add(*table, item))
                .map_err(|source| ReadError { table: *table, source })?;
        }
        Ok(())
    }

    /// Dumps chain by chain: in a dump of the whole table, the kernel goes through all rules that it has returned before for
    /// every 32 KiB that it returns.
    fn read_table(&self, table: TableName, add: &mut dyn FnMut(SaveItem)) -> Result<(), Error> {
        let chains =
            self.collect(&mut request(self.family, NFT_MSG_GETCHAIN, table), |message| chain(message, table))?;
        for (chain, head) in &chains {
            add(SaveItem::Chain(*chain, *head));
        }
        for (name, _) in chains {
            Heartbeat::beat_thread();
            for (_, rule) in self.rules_with_handles(table, name)? {
                add(SaveItem::Rule(name, rule));
            }
        }
        Ok(())
    }

    /// Reports whether a chain exists.
    ///
    /// # Errors
    /// If the kernel refuses for another reason.
    pub(crate) fn has_chain(&self, table: TableName, chain: ChainName) -> Result<bool, ReadError> {
        self.with_socket(|socket| has_chain(socket, self.family, table, chain))
            .map_err(|source| ReadError { table, source })
    }

    /// Returns the rules of a chain with their handles; none if it does not exist.
    pub(super) fn rules_with_handles(&self, table: TableName, chain: ChainName) -> Result<Vec<(u64, Rule)>, Error> {
        let mut request = request(self.family, NFT_MSG_GETRULE, table);
        request.attributes().put_str(NFTA_RULE_CHAIN, chain.as_str());
        self.collect(&mut request, |message| {
            let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
            let KernelRule { table: of, chain: listed, handle, rule } = decode::rule(self.family, attributes)?;
            Ok((of == table.as_str() && listed == chain.as_str()).then_some((handle, rule)))
        })
    }

    /// Returns the objects of a dump; none if the table or chain does not exist.
    fn collect<T>(
        &self,
        request: &mut Request,
        parse: impl Fn(&Message<'_>) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut objects = Vec::new();
            let result = self.with_socket(|socket| {
                socket.dump(request, |message| {
                    objects.extend(parse(&message)?);
                    Ok::<_, Error>(())
                })
            });
            match result {
                Ok(Consistency::Consistent) => return Ok(objects),
                Ok(Consistency::Interrupted) if attempts == MAX_ATTEMPTS => {
                    return Err(Error::Interrupted { kind: request.kind(), attempts });
                }
                Ok(Consistency::Interrupted) => {}
                Err(error) if error.is_not_found() => return Ok(Vec::new()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Reports whether a chain exists.
pub(super) fn has_chain(
    socket: &mut Socket,
    family: IpFamily,
    table: TableName,
    chain: ChainName,
) -> Result<bool, Error> {
    let mut request = request(family, NFT_MSG_GETCHAIN, table);
    request.attributes().put_str(NFTA_CHAIN_NAME, chain.as_str());
    match socket.request_ack(&mut request) {
        Ok(()) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Decodes a chain of a table; `None` if it is of another table or `iptables` cannot name it.
fn chain(message: &Message<'_>, table: TableName) -> Result<Option<(ChainName, ChainHead)>, Malformed> {
    let (_, attributes) = message.split_header::<{ nfnetlink::HEADER_LENGTH }>()?;
    let (mut name, mut head, mut is_of_table) = (None, ChainHead::default(), false);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_CHAIN_TABLE => is_of_table = attribute.str()? == table.as_str(),
            NFTA_CHAIN_NAME => name = ChainName::new(attribute.str()?).ok(),
            NFTA_CHAIN_POLICY => {
                let is_drop = attribute.u32_be()? == NF_DROP.cast_unsigned();
                head.policy = Some(if is_drop { Policy::Drop } else { Policy::Accept });
            }
            NFTA_CHAIN_COUNTERS => {
                for counter in attribute.nested() {
                    let counter = counter?;
                    let Counters { packets, bytes } = &mut head.counters;
                    match counter.kind {
                        NFTA_COUNTER_PACKETS => *packets = counter.u64_be()?,
                        NFTA_COUNTER_BYTES => *bytes = counter.u64_be()?,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Ok(name.filter(|_| is_of_table).map(|name| (name, head)))
}

/// How often a dump is repeated because of other programs' changes. A dump takes a millisecond, except for that of the chains of a
/// large cluster and of the few chains with rules of all Services.
const MAX_ATTEMPTS: usize = 20;
