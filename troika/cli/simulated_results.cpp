#include "troika/cli/simulated_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "troika/base/text.h"
#include "troika/plan/simulation/cluster_links.h"

namespace troika::cli {

namespace {

using nlohmann::ordered_json;

const char* plural(int64_t count) {
  return count == 1 ? "" : "s";
}

// The traffic of a link, and its share of the link's bandwidth (0 if the bandwidth is unlimited).
struct LinkShare {
  std::string name;
  double bandwidth = 0;  // 0: unlimited
  double bytes = 0;      // of a step
  double busy = 0;       // share of the time
  double used = 0;
};

std::vector<LinkShare> link_shares(const plan::ClusterLinks& links,
                                   const plan::RunSimulation& simulation) {
  const auto names = links.names();
  const auto bandwidths = links.bandwidths();
  const auto steps = static_cast<double>(simulation.step_seconds.size());
  std::vector<LinkShare> shares;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto& traffic = simulation.links[i];
    auto& share = shares.emplace_back();
    share.name = names[i];
    share.bytes = traffic.bytes / steps;
    if (std::isinf(bandwidths[i]) || simulation.seconds == 0) continue;
    share.bandwidth = bandwidths[i];
    share.busy = traffic.busy_seconds / simulation.seconds;
    share.used = traffic.bytes / bandwidths[i] / simulation.seconds;
  }
  return shares;
}

// The most used link of a rank.
const LinkShare& busiest(const plan::ClusterLinks& links, const std::vector<LinkShare>& shares,
                         int rank) {
  const auto own = links.links_of(rank);
  return shares[static_cast<size_t>(*std::ranges::max_element(
      own, {}, [&](int link) { return shares[static_cast<size_t>(link)].used; }))];
}

ordered_json as_json(const plan::RankUse& use, const LinkShare& link) {
  return {{"compute_seconds", use.compute_seconds},
          {"exposed_seconds", use.exposed_seconds},
          {"idle_seconds", use.idle_seconds},
          {"peak_bytes", use.peak_bytes},
          {"sent_bytes", use.sent_bytes},
          {"received_bytes", use.received_bytes},
          {"busiest_link", link.name},
          {"busiest_link_use", link.used}};
}

// A row for the ranks of each place of the pipeline axis: means, and the maximum of memory and link
// use.
void print_places(const layout::Mesh& mesh, const plan::RunSimulation& simulation,
                  const plan::ClusterLinks& links, const std::vector<LinkShare>& shares) {
  const int places = mesh.size(layout::Axis::pipeline);
  const double step = simulation.seconds / static_cast<double>(simulation.step_seconds.size());
  fmt::print("\nplace  ranks  compute  collectives    idle  peak memory  busiest link\n");
  for (int place = 0; place < places; ++place) {
    plan::RankUse sum;
    const LinkShare* most = nullptr;
    int ranks = 0;
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      if (mesh.coordinates(rank)[layout::Axis::pipeline] != place) continue;
      const auto& use = simulation.ranks[static_cast<size_t>(rank)];
      ++ranks;
      sum.compute_seconds += use.compute_seconds;
      sum.exposed_seconds += use.exposed_seconds;
      sum.idle_seconds += use.idle_seconds;
      sum.peak_bytes = std::max(sum.peak_bytes, use.peak_bytes);
      const auto& link = busiest(links, shares, rank);
      if (!most || link.used > most->used) most = &link;
    }
    const double scale = step > 0 ? 100 / (step * ranks) : 0;
    fmt::print("{:>5}  {:>5}  {:>5.1f} %  {:>9.1f} %  {:>4.1f} %  {:>11}  {}\n", place, ranks,
               sum.compute_seconds * scale, sum.exposed_seconds * scale, sum.idle_seconds * scale,
               human_bytes(sum.peak_bytes),
               most->used > 0 ? fmt::format("{}: {:.1f} %", most->name, 100 * most->used) : "-");
  }
}

void print_memory(const plan::RunSimulation& simulation, const layout::Cluster& cluster,
                  int beyond) {
  fmt::print("\ndoes not fit: rank {} needs {}, and its device has {}\n", beyond,
             human_bytes(simulation.ranks[static_cast<size_t>(beyond)].peak_bytes),
             human_bytes(static_cast<double>(cluster.devices_of(beyond).memory_bytes)));
}

// The numbers of exchanges with servers.
void print_servers(const plan::RunSimulation& simulation) {
  if (const auto& staleness = simulation.staleness) {
    fmt::print("staleness    {:.4g} in the mean of {}, at most {}\n", staleness->mean,
               staleness->count, staleness->most);
  }
  if (const auto& batch = simulation.batch) {
    fmt::print("passes       {}, with {} portion{}, {} backup{} and {} dropped result{}\n",
               batch->passes, batch->portions, plural(batch->portions), batch->backups,
               plural(batch->backups), batch->dropped, plural(batch->dropped));
  }
}

void add_servers(ordered_json& json, const plan::RunSimulation& simulation) {
  if (const auto& staleness = simulation.staleness) {
    json["staleness"] = {
        {"mean", staleness->mean}, {"most", staleness->most}, {"count", staleness->count}};
  }
  if (const auto& batch = simulation.batch) {
    json["batch"] = {{"passes", batch->passes},
                     {"portions", batch->portions},
                     {"backups", batch->backups},
                     {"dropped", batch->dropped}};
  }
}

}  // namespace

ordered_json show(const plan::SweptRun& asked, const plan::RunSimulation& simulation) {
  const auto& run = asked.run;
  const auto& plan = run.plan;
  const int ranks = plan.mesh.ranks(), devices = run.cluster.ranks();
  const auto steps = static_cast<double>(simulation.step_seconds.size());
  const auto [least, most] = std::ranges::minmax(simulation.step_seconds);
  const double step = simulation.seconds / steps;
  const double samples =
      run.micro_batches_of_step() * asked.profile.micro_batch * asked.work.samples;
  fmt::print("plan         {}: {} rank{} on {} device{}\n",
             plan.mesh.text().empty() ? "one rank" : plan.mesh.text(), ranks, plural(ranks),
             devices, plural(devices));
  fmt::print("schedule     {}, {} micro-batch{}\n", plan.schedule, plan.micro_batches,
             plan.micro_batches == 1 ? "" : "es");
  fmt::print(
      "step         {:.6g} s{}\n", step,
      steps > 1 ? fmt::format(", from {:.6g} to {:.6g} s in {} steps", least, most, steps) : "");
  fmt::print("samples      {:.6g} a step, {:.6g} a second\n", samples, samples / step);
  if (simulation.bubble_rate) fmt::print("bubble rate  {:.4f}\n", *simulation.bubble_rate);
  print_servers(simulation);
  const plan::ClusterLinks links(run.cluster);
  const auto shares = link_shares(links, simulation);
  print_places(plan.mesh, simulation, links, shares);
  const auto beyond = plan::rank_beyond_memory(simulation, run.cluster);
  if (beyond) print_memory(simulation, run.cluster, *beyond);
  ordered_json by_rank = ordered_json::array(), by_link = ordered_json::array();
  for (int rank = 0; rank < ranks; ++rank) {
    by_rank.push_back(
        as_json(simulation.ranks[static_cast<size_t>(rank)], busiest(links, shares, rank)));
  }
  for (const auto& share : shares) {
    if (share.bytes == 0) continue;
    by_link.push_back({{"name", share.name},
                       {"bandwidth", share.bandwidth},
                       {"bytes", share.bytes},
                       {"busy_share", share.busy},
                       {"use", share.used}});
  }
  ordered_json json{{"mesh", plan.mesh.text()},
                    {"schedule", plan.schedule},
                    {"micro_batches", plan.micro_batches},
                    {"devices", devices},
                    {"idle_devices", devices - ranks},
                    {"step_seconds", step},
                    {"seconds_by_step", simulation.step_seconds},
                    {"samples_per_second", samples / step},
                    {"makespan", simulation.makespan},
                    {"fits", !beyond},
                    {"ranks", by_rank},
                    {"links", by_link}};
  if (simulation.bubble_rate) json["bubble_rate"] = *simulation.bubble_rate;
  add_servers(json, simulation);
  return json;
}

ordered_json show(const plan::Goodput& goodput) {
  const auto percent = [](double share) { return fmt::format("{:.2f} %", 100 * share); };
  fmt::print("\ngoodput      {} of the time, with a checkpoint every {} step{}\n",
             percent(goodput.share), goodput.steps_between_checkpoints,
             plural(goodput.steps_between_checkpoints));
  fmt::print("lost         {} checkpoints, {} steps done again, {} restarts\n",
             percent(goodput.checkpoint_share), percent(goodput.lost_share),
             percent(goodput.restart_share));
  fmt::print("simulated    {} failure{} in {}\n", goodput.failures, plural(goodput.failures),
             human_seconds(goodput.simulated_seconds));
  if (goodput.expected_share) fmt::print("expected     {}\n", percent(*goodput.expected_share));
  if (goodput.best_interval > 0) {
    fmt::print("best         a checkpoint every {}\n", human_seconds(goodput.best_interval));
  }
  return {{"share", goodput.share},
          {"checkpoint_share", goodput.checkpoint_share},
          {"lost_share", goodput.lost_share},
          {"restart_share", goodput.restart_share},
          {"failures", goodput.failures},
          {"steps_between_checkpoints", goodput.steps_between_checkpoints},
          {"simulated_seconds", goodput.simulated_seconds},
          {"expected_share",
           goodput.expected_share ? ordered_json(*goodput.expected_share) : ordered_json()},
          {"best_interval", goodput.best_interval}};
}

ordered_json show(const std::vector<plan::DevicesPoint>& points) {
  ordered_json json = ordered_json::array();
  fmt::print("{:>7}  {:>5}  {:>5}  {:>10}  {:>12}  {:>8}  {:>10}  fits  mesh\n", "devices", "used",
             "idle", "step, s", "samples/s", "speed-up", "idle time");
  for (const auto& point : points) {
    fmt::print("{:>7}  {:>5}  {:>5}  {:>10.4g}  {:>12.6g}  {:>8}  {:>8.1f} %  {:<4}  {}\n",
               point.devices, point.used, point.devices - point.used, point.step_seconds,
               point.samples_per_second,
               point.speed_up ? fmt::format("{:.2f}", *point.speed_up) : "-",
               100 * point.idle_share, point.fits ? "yes" : "no", point.mesh);
    json.push_back({{"devices", point.devices},
                    {"idle_devices", point.devices - point.used},
                    {"mesh", point.mesh},
                    {"step_seconds", point.step_seconds},
                    {"samples_per_second", point.samples_per_second},
                    {"speed_up", point.speed_up ? ordered_json(*point.speed_up) : ordered_json()},
                    {"idle_share", point.idle_share},
                    {"fits", point.fits}});
  }
  return {{"devices", json}};
}

ordered_json show(const std::vector<plan::MicroBatchesPoint>& points) {
  ordered_json json = ordered_json::array();
  const auto* best = plan::best_of(points);
  fmt::print("{:>13}  {:>7}  {:>10}  {:>11}  {:>11}  fits\n", "micro-batches", "samples", "step, s",
             "bubble rate", "peak memory");
  for (const auto& point : points) {
    fmt::print("{:>13}  {:>7.4g}  {:>10.4g}  {:>11}  {:>11}  {}{}\n", point.micro_batches,
               point.samples, point.step_seconds,
               point.bubble_rate ? fmt::format("{:.4f}", *point.bubble_rate) : "-",
               human_bytes(point.peak_bytes), point.fits ? "yes" : "no",
               &point == best ? ", fastest" : "");
    json.push_back(
        {{"micro_batches", point.micro_batches},
         {"samples", point.samples},
         {"step_seconds", point.step_seconds},
         {"bubble_rate", point.bubble_rate ? ordered_json(*point.bubble_rate) : ordered_json()},
         {"peak_bytes", point.peak_bytes},
         {"fits", point.fits}});
  }
  return {{"micro_batches", json},
          {"best", best ? ordered_json(best->micro_batches) : ordered_json()}};
}

}  // namespace troika::cli
