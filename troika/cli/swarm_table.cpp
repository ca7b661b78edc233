#include "troika/cli/swarm_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "troika/base/text.h"
#include "troika/parallel/swarm/swarm_dialer.h"

namespace troika::cli {

namespace {

// A text of another machine, for this one's terminal.
std::string harmless(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char byte) { return byte < ' ' || byte == 0x7f; }, '?');
  return text;
}

double share_of(double part, double all) {
  return all > 0 ? part / all : 0;
}

const char* state_of(const swarm::PeerProgress& peer, int64_t step) {
  if (peer.is_paused) return "paused";
  if (peer.epoch < step) return "behind";
  return peer.is_partial ? "apart" : "equal";
}

PeerRow row_of(const WatchedPeer& peer, int64_t step) {
  const auto& [progress, contact, report] = peer;
  return {.key = progress.peer,
          .step = progress.epoch,
          .samples = progress.samples,
          .samples_per_second = progress.samples_per_second,
          .contributed = report.samples,
          .sent = report.sent,
          .received = report.received,
          .loss = report.loss,
          .kind = progress.is_client ? "client" : "node",
          .state = state_of(progress, step),
          .version = harmless(report.version),
          .model = harmless(contact.model),
          .address =
              contact.addresses.empty() ? "" : harmless(parallel::show(contact.addresses.front()))};
}

// Sums are over the peers that are there.
void add_shares(std::vector<PeerRow>& rows) {
  PeerRow all;
  for (const auto& row : rows) {
    all.samples_per_second += row.samples_per_second;
    all.contributed += row.contributed;
    all.byte_share += static_cast<double>(row.sent);
  }
  for (auto& row : rows) {
    row.share = share_of(row.samples_per_second, all.samples_per_second);
    row.sample_share = share_of(row.contributed, all.contributed);
    row.byte_share = share_of(static_cast<double>(row.sent), all.byte_share);
  }
}

std::optional<double> loss_of(const std::vector<WatchedPeer>& peers) {
  double sum = 0, samples = 0;
  for (const auto& peer : peers) {
    if (!peer.report.loss) continue;
    const auto weight = static_cast<double>(peer.report.loss_samples);
    sum += *peer.report.loss * weight;
    samples += weight;
  }
  return samples > 0 ? std::optional(sum / samples) : std::nullopt;
}

std::string loss_text(const std::optional<double>& loss) {
  return loss ? human_number(*loss, 4) : "-";
}

nlohmann::json json_of(const std::optional<double>& loss) {
  return loss ? nlohmann::json(*loss) : nlohmann::json();
}

nlohmann::json json_of(const PeerRow& row) {
  return {{"key", row.key},
          {"step", row.step},
          {"samples", row.samples},
          {"samples_per_second", row.samples_per_second},
          {"share", row.share},
          {"contributed_samples", row.contributed},
          {"sample_share", row.sample_share},
          {"sent_bytes", row.sent},
          {"received_bytes", row.received},
          {"byte_share", row.byte_share},
          {"loss", json_of(row.loss)},
          {"kind", row.kind},
          {"state", row.state},
          {"version", row.version},
          {"model", row.model},
          {"address", row.address}};
}

}  // namespace

SwarmTable table_of(const WatchedSwarm& swarm) {
  SwarmTable table{.run = swarm.run,
                   .step = swarm.all.epoch,
                   .samples_per_second = swarm.all.samples_per_second,
                   .loss = loss_of(swarm.peers),
                   .banned = swarm.banned,
                   .is_connected = swarm.is_connected};
  for (const auto& peer : swarm.peers) {
    table.target_batch = std::max(table.target_batch, peer.contact.target_batch);
    table.peers.push_back(row_of(peer, table.step));
  }
  table.samples = std::min(swarm.all.samples, static_cast<double>(table.target_batch));
  add_shares(table.peers);
  std::ranges::stable_sort(table.peers, std::greater{}, [](const PeerRow& row) {
    return std::pair(row.step, row.samples_per_second);
  });
  return table;
}

std::string as_text(const SwarmTable& table) {
  std::string text =
      fmt::format("swarm {}: {} peers, step {}, {:.0f} of {} samples, {:.1f} samples/s, loss {}\n",
                  table.run, table.peers.size(), table.step, table.samples, table.target_batch,
                  table.samples_per_second, loss_text(table.loss));
  if (!table.is_connected) text += "no connection to a peer: this is old\n";
  text += fmt::format(
      "{:<8}  {:>6}  {:>7}  {:>9}  {:>5}  {:>7}  {:>5}  {:>8}  {:<6}  {:<6}  {:<7}  {}\n", "peer",
      "step", "samples", "samples/s", "share", "given", "bytes", "loss", "kind", "state", "version",
      "address");
  for (const auto& row : table.peers) {
    text += fmt::format(
        "{:<8}  {:>6}  {:>7}  {:>9.1f}  {:>3.0f} %  {:>5.0f} %  {:>3.0f} %  {:>8}  {:<6}  {:<6}  "
        "{:<7}  {}\n",
        row.key.substr(0, 8), row.step, row.samples, row.samples_per_second, 100 * row.share,
        100 * row.sample_share, 100 * row.byte_share, loss_text(row.loss), row.kind, row.state,
        row.version.empty() ? "-" : row.version, row.address.empty() ? "-" : row.address);
  }
  for (const auto& banned : table.banned) {
    text += fmt::format("{:<8}  banned, accused by {}\n", banned.key.substr(0, 8), banned.accusers);
  }
  return text;
}

std::string as_json(const SwarmTable& table) {
  auto peers = nlohmann::json::array();
  for (const auto& row : table.peers) peers.push_back(json_of(row));
  auto banned = nlohmann::json::array();
  for (const auto& peer : table.banned) {
    banned.push_back({{"key", peer.key}, {"accusers", peer.accusers}});
  }
  const nlohmann::json json{{"run", table.run},
                            {"step", table.step},
                            {"samples", table.samples},
                            {"target_batch", table.target_batch},
                            {"samples_per_second", table.samples_per_second},
                            {"loss", json_of(table.loss)},
                            {"is_connected", table.is_connected},
                            {"peers", peers},
                            {"banned", banned}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
}

}  // namespace troika::cli
