#include "troika/cluster/discovery/run_secret.h"

#include <fmt/format.h>

namespace troika::cluster {

namespace {

// A server that is closing or has too many connections refuses only once or twice.
constexpr int kMinRefusals = 5;
constexpr Milliseconds kRefusalTime{3000};

const char* name_of(Role role) {
  switch (role) {
    case Role::ranks:
      return "ranks";
    case Role::relay:
      return "relay";
    case Role::launches:
      return "launches";
  }
  return "";
}

}  // namespace

net::Secret role_key(const RunSecret& run, Role role) {
  return run.secret.derive("role", name_of(role));
}

std::string listener_name(Role role, int port) {
  return fmt::format("{}:{}", name_of(role), port);
}

std::string unique_name() {
  return net::Secret::random().to_hex();
}

RunSecret find_secret(const std::string& run, const Variables& variables,
                      const std::filesystem::path& folder) {
  if (const auto text = variables(kSecretVariable); text && !text->empty()) {
    return {net::Secret::parse(*text, kSecretVariable), kSecretVariable};
  }
  if (const auto path = variables(kSecretFileVariable); path && !path->empty()) {
    return {net::read_secret_file(*path), fmt::format("{}={}", kSecretFileVariable, *path)};
  }
  return {net::user_secret(folder).derive("run", run), (folder / "run-key").string()};
}

bool is_secret_given(const Variables& variables) {
  for (const char* name : {kSecretVariable, kSecretFileVariable}) {
    if (const auto text = variables(name); text && !text->empty()) return true;
  }
  return false;
}

RunSecret secret_of_ranks(const Environment& environment) {
  if (environment.world_size == 1) return {net::Secret::random(), "this process"};
  return find_secret(environment.run_id);
}

Error not_authenticated(const std::string& who, const net::DialFailure& failure,
                        const RunSecret& own) {
  return Error("cluster", ErrorKind::usage,
               {.what = fmt::format("could not authenticate with {}", who),
                .got = failure.kind == net::DialFailure::Kind::wrong
                           ? "an answer made with another run secret"
                           : fmt::format("no answer to our proof ({})", failure.detail),
                .expected = "the same run secret and version of Troika there",
                .hint = fmt::format(
                    "ours is from {}; if no launcher passes {} on, machines without a shared home "
                    "folder need the same file named by {}; otherwise another run has the port",
                    own.source, kSecretVariable, kSecretFileVariable)});
}

std::string show_unproven(int connections) {
  if (connections == 0) return "";
  return fmt::format("; {} {} failed authentication there: do all have the same run secret?",
                     connections, connections == 1 ? "connection" : "connections");
}

bool Refusals::add() {
  if (count_++ == 0) first_ = Clock::now();
  return count_ >= kMinRefusals && Clock::now() - first_ >= kRefusalTime;
}

}  // namespace troika::cluster
