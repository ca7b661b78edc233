#include "troika/train/run/swarm_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <system_error>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/processor_load.h"
#include "troika/base/text.h"
#include "troika/cluster/discovery/run_secret.h"
#include "troika/net/descriptor.h"
#include "troika/net/interface.h"
#include "troika/nn/precision.h"
#include "troika/observe/summary.h"
#include "troika/train/options/limits.h"
#include "troika/train/options/outer_strategies.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::train {

namespace {

// An address of networks that are never used: packets to it take the default route.
constexpr const char* kElsewhere = "192.0.2.1";
constexpr double kBytesOfMegabit = 1e6 / 8;
// Four chunks of a state, of 256 KiB each, take 8 s then.
constexpr double kLeastMegabits = 1;

[[noreturn]] void refuse_swarm(const std::string& what, const std::string& got,
                               const std::string& expected, const std::string& hint = "") {
  throw Error("train", ErrorKind::usage,
              {.what = what, .got = got, .expected = expected, .hint = hint});
}

void require_supported(const TrainOptions& options, const cluster::Environment& environment) {
  const auto require = [](bool holds, const std::string& got, const std::string& expected) {
    if (!holds) refuse_swarm("a peer of a swarm trains by itself", got, expected);
  };
  const auto& trainer = options.trainer;
  const auto precision = nn::parse_precision(trainer.precision);
  require(environment.world_size == 1, fmt::format("{} ranks", environment.world_size),
          "one process for each peer");
  require(trainer.devices <= 1, fmt::format("trainer.devices {}", trainer.devices), "1");
  require(trainer.num_nodes <= 1, fmt::format("trainer.num_nodes {}", trainer.num_nodes), "1");
  require(!overfits(options), "trainer.overfit_batches " + trainer.overfit_batches,
          "0: each peer has an order of its own");
  require(!precision.needs_scaler() && !precision.needs_masters(),
          "trainer.precision " + precision.name, "32, 64 or bf16-mixed");
  require(trainer.accumulate_grad_batches == 1,
          fmt::format("trainer.accumulate_grad_batches {}", trainer.accumulate_grad_batches),
          "1: peers accumulate until the swarm has its batch");
  require(trainer.accelerator == "cpu" || trainer.accelerator == "auto",
          "trainer.accelerator " + trainer.accelerator, "cpu");
  require(!trainer.sync_batchnorm, "trainer.sync_batchnorm true", "false");
  require(!options.ema.enabled, "ema.enabled true", "false");
  require(options.swa.swa_lrs == 0, fmt::format("swa.swa_lrs {}", options.swa.swa_lrs), "0");
  require(options.ddp.codec.name == "none", "ddp.hook " + options.ddp.codec.name, "none");
  if (options.data.global_batch_size <= 0) {
    refuse_swarm("the steps of a swarm have a size of their own", "data.global_batch_size 0",
                 "the samples of a step, of all peers together",
                 "data.batch_size is the samples of a micro-batch of this peer");
  }
  if (options.swarm.target_group_size > 0 && options.swarm.aggregation != "mean") {
    refuse_swarm("the groups of a swarm that are parts of it compute means",
                 "swarm.aggregation " + options.swarm.aggregation, "mean",
                 "swarm.target_group_size=0 makes one group of all");
  }
  if (options.swarm.mode == "client" && options.swarm.peers.empty()) {
    refuse_swarm("others cannot connect to a client", "swarm.peers []", "at least one peer");
  }
  if (options.swarm.mode == "auxiliary" && options.swarm.peers.empty()) {
    refuse_swarm("an auxiliary peer has no state of its own", "swarm.peers []",
                 "at least one peer that trains");
  }
}

// Bytes per second; infinite for 0.
double cap_of(double megabits, const std::string& option) {
  if (megabits == 0) return std::numeric_limits<double>::infinity();
  if (megabits < kLeastMegabits) {
    refuse_swarm("downloads of a state do not end in time at this rate",
                 fmt::format("{} {}", option, megabits),
                 fmt::format("0 for no limit, or {} Mbit/s at least", kLeastMegabits));
  }
  return megabits * kBytesOfMegabit;
}

// SwarmMemberOptions::pauses.
std::function<std::string()> pauses_of(const parallel::SwarmSection& own) {
  const auto load =
      own.max_load_of_others < 1 ? std::make_shared<LoadOfOthers>(own.max_load_of_others) : nullptr;
  return [file = own.pause_file, load]() -> std::string {
    std::error_code ignored;
    if (!file.empty() && std::filesystem::exists(file, ignored)) return file + " exists";
    if (!load || !load->is_above()) return {};
    return fmt::format("other programs use {:.0f} % of the processors", 100 * load->latest());
  };
}

net::Duration duration_of(double seconds) {
  return std::chrono::duration_cast<net::Duration>(std::chrono::duration<double>(seconds));
}

// KEY@HOST:PORT.
std::pair<std::string, net::Address> parse_authority(const std::string& text) {
  const auto at = text.find('@');
  const auto key = text.substr(0, std::min(at, text.size()));
  const bool is_key = key.size() == 64 && key.find_first_not_of("0123456789abcdef") == key.npos;
  if (at == text.npos || !is_key) {
    refuse_swarm("swarm.authority names no authority", '"' + text + '"',
                 "KEY@HOST:PORT, with a key of 64 hexadecimal digits",
                 "`troika swarm authority` prints it");
  }
  return {key, parse_address(text.substr(at + 1), "swarm.authority")};
}

std::optional<net::Address> announced(const parallel::SwarmSection& own,
                                      const net::Address& listen) {
  if (!own.announce.empty()) return parse_address(own.announce, "swarm.announce");
  if (listen.host != "0.0.0.0" && listen.host != "::") return std::nullopt;
  const auto addresses = net::own_addresses(kElsewhere);
  if (addresses.empty()) {
    refuse_swarm("this machine has no address for others", "swarm.listen " + own.listen,
                 "swarm.announce = HOST:PORT");
  }
  return net::Address{addresses.front(), listen.port};
}

// Sets the options that are the same on all peers, and those of this one in the configuration.
void set_peer_options(swarm::PeerOptions<double>& peer, const TrainOptions& options,
                      const layout::OuterExchange& outer) {
  const auto& own = options.swarm;
  peer.run = own.run;
  peer.target_batch = options.data.global_batch_size;
  peer.aggregation =
      own.aggregation == "mean" ? swarm::Aggregation::mean : swarm::Aggregation::centred_clip;
  peer.group_size = static_cast<size_t>(own.target_group_size);
  peer.overlaps = outer.is_on ? outer.delay > 0 : own.delay_optimizer_step;
  peer.mode = own.mode == "client"      ? swarm::Mode::client
              : own.mode == "auxiliary" ? swarm::Mode::auxiliary
                                        : swarm::Mode::node;
  peer.discovery_time = duration_of(own.discovery_seconds);
  peer.matchmaking_time = duration_of(own.matchmaking_seconds);
  peer.averaging_time = duration_of(own.averaging_seconds);
  peer.sender_timeout = duration_of(own.sender_timeout_seconds);
}

}  // namespace

bool trains_in_swarm(const TrainOptions& options) {
  try {
    return resolve_plan(options, layout::Cluster()).exchange.method ==
           layout::ExchangeMethod::collaborative;
  } catch (const Error&) {
    return false;  // the check of the plan says more
  }
}

net::Address parse_address(const std::string& text, const std::string& option) {
  const auto colon = text.rfind(':');
  auto host = text.substr(0, std::min(colon, text.size()));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const auto port = colon == text.npos ? std::nullopt : parse_int(text.substr(colon + 1));
  if (host.empty() || !port || *port < 0 || *port > 65535) {
    refuse_swarm(option + " is no address", '"' + text + '"', "HOST:PORT",
                 "an IPv6 address is written in brackets");
  }
  return {host, static_cast<int>(*port)};
}

swarm::Identity identity_of(const std::filesystem::path& file) {
  if (file.empty()) return swarm::Identity::random();
  if (!std::filesystem::exists(file)) {
    // Created with its mode, so that nobody reads it before.
    const net::Descriptor created(
        ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
    File(file, O_WRONLY).write(net::Secret::random().to_hex() + "\n");
  }
  const auto secret = net::read_secret_file(file);
  std::array<uint8_t, swarm::Identity::kSeed> seed{};
  std::copy_n(secret.data(), seed.size(), seed.begin());
  return swarm::Identity::from_seed(seed);
}

net::Secret swarm_secret(const std::string& run, const cluster::Variables& variables) {
  return cluster::find_secret("swarm " + run, variables).secret.derive("collaborative run", "");
}

std::shared_ptr<parallel::SwarmMember> make_swarm_member(const TrainOptions& options,
                                                         const cluster::Environment& environment,
                                                         const cluster::Variables& variables) {
  if (!trains_in_swarm(options)) return nullptr;
  require_supported(options, environment);
  const auto plan = resolve_plan(options, layout::Cluster());
  require_outer_steps_fit_swarm(options, plan);
  const auto& own = options.swarm;
  const swarm::BandwidthCap cap{
      .up = cap_of(own.max_upload_megabits, "swarm.max_upload_megabits"),
      .down = cap_of(own.max_download_megabits, "swarm.max_download_megabits")};
  parallel::SwarmMemberOptions member(swarm_secret(own.run, variables));
  member.identity = identity_of(own.identity);
  for (const auto& peer : own.peers) member.peers.push_back(parse_address(peer, "swarm.peers"));
  member.listen = parse_address(own.listen, "swarm.listen");
  member.announce = announced(own, member.listen);
  member.min_peers = own.min_peers;
  member.join_timeout = Milliseconds(static_cast<int64_t>(options.comm.join_timeout_seconds * 1e3));
  member.compression = {.codec = own.grad_compression, .threshold = own.grad_compression_threshold};
  member.cap = cap;
  member.processor_share = own.processor_share;
  member.pauses = pauses_of(own);
  member.version = observe::troika_version();
  set_peer_options(member.peer, options, plan.exchange.outer);
  const double slowest = std::min(cap.up, cap.down);
  if (own.bandwidth_megabits > 0) {
    member.peer.bandwidth = std::min(slowest, own.bandwidth_megabits * kBytesOfMegabit);
  } else if (std::isfinite(slowest)) {
    member.peer.bandwidth = slowest;
  }
  if (!own.authority.empty()) {
    std::tie(member.peer.authority, member.authority) = parse_authority(own.authority);
  }
  member.peer.seed = std::stoull(member.identity.name().substr(0, 16), nullptr, 16);
  return std::make_shared<parallel::SwarmMember>(std::move(member));
}

void take_swarm_options(TrainOptions& options) {
  options.trainer.devices = options.trainer.num_nodes = -1;
  options.trainer.accelerator = "cpu";
  // Peers would decide by different timings.
  options.trainer.benchmark = false;
  if (options.swarm.mode != "auxiliary") return;
  options.checkpoint.enabled = false;
  options.trainer.num_sanity_val_steps = 0;
}

}  // namespace troika::train
