// The place of a process in a run of strategy swarm: docs/swarm.md.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "troika/cluster/discovery/environment.h"
#include "troika/parallel/swarm/swarm_member.h"
#include "troika/train/options/options.h"

namespace troika::train {

// Whether the options' strategy is swarm. False for options that resolve_plan() refuses.
bool trains_in_swarm(const TrainOptions& options);

// HOST:PORT. Throws Error(train, usage) that names `option`.
net::Address parse_address(const std::string& text, const std::string& option);

// Returns the identity in a file of 64 hexadecimal digits, which is made with mode 0600 if it does
// not exist; a new one for an empty path. Throws the errors of net::read_secret_file().
swarm::Identity identity_of(const std::filesystem::path& file);

// The secret of the connections of a collaborative run: derived from that of
// cluster::find_secret() and the run's name, unless it is given.
net::Secret swarm_secret(const std::string& run,
                         const cluster::Variables& variables = cluster::process_variable);

// Returns the member that the options describe; null with another strategy. Throws
// Error(train, usage) for options that the strategy does not support, and for several ranks.
std::shared_ptr<parallel::SwarmMember> make_swarm_member(
    const TrainOptions& options, const cluster::Environment& environment,
    const cluster::Variables& variables = cluster::process_variable);

// Makes the options those of a peer's run: on the CPU, in this process.
void take_swarm_options(TrainOptions& options);

}  // namespace troika::train
