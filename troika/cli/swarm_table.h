// The numbers that a monitor of a swarm shows, the same in the terminal, as JSON, and in a browser.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troika/swarm/contact.h"
#include "troika/swarm/peer_report.h"
#include "troika/swarm/progress.h"

namespace troika::cli {

// A peer, as it tells of itself.
struct WatchedPeer {
  swarm::PeerProgress progress = {};
  swarm::Contact contact = {};
  swarm::PeerReport report = {};
};

struct BannedPeer {
  std::string key;
  size_t accusers = 0;
};

struct WatchedSwarm {
  std::string run;
  swarm::SwarmProgress all = {};
  std::vector<WatchedPeer> peers = {};
  std::vector<BannedPeer> banned = {};
  bool is_connected = true;  // to a peer; otherwise the rest is old
};

// Texts of peers are made harmless for a terminal.
struct PeerRow {
  std::string key;
  int64_t step = 0;
  int64_t samples = 0;  // of the step
  double samples_per_second = 0;
  double share = 0;                 // of the samples per second
  double contributed = 0;           // samples since it joined
  double sample_share = 0;          // of the contributed samples
  uint64_t sent = 0, received = 0;  // bytes
  double byte_share = 0;            // of the bytes that all have sent
  std::optional<double> loss = {};
  std::string kind;   // node or client
  std::string state;  // equal, behind, apart or paused
  std::string version;
  std::string model;
  std::string address;  // empty: others cannot connect to it
};

struct SwarmTable {
  std::string run;
  int64_t step = 0;
  double samples = 0;
  int64_t target_batch = 0;
  double samples_per_second = 0;
  std::optional<double> loss = {};  // mean over the samples of the latest step that peers tell of
  std::vector<PeerRow> peers = {};  // the latest and fastest first
  std::vector<BannedPeer> banned = {};
  bool is_connected = true;
};

SwarmTable table_of(const WatchedSwarm& swarm);
std::string as_text(const SwarmTable& table);
// One line.
std::string as_json(const SwarmTable& table);

}  // namespace troika::cli
