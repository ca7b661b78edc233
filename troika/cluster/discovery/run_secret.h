// How a process gets the run's secret and passes it on.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "troika/base/error.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/net/dial.h"
#include "troika/net/secret.h"

namespace troika::cluster {

// The secret as 64 hexadecimal digits, or the path of a file (mode 0600) that contains them.
inline constexpr const char* kSecretVariable = "TROIKA_RUN_SECRET";
inline constexpr const char* kSecretFileVariable = "TROIKA_RUN_SECRET_FILE";

struct RunSecret {
  net::Secret secret;
  std::string source;  // its origin, for error messages
};

// Returns the key of listeners with this role. It is derived one-way from the run's secret: a
// process that only has one role's key cannot listen or connect in another role.
enum class Role { ranks, relay, launches };
net::Secret role_key(const RunSecret& run, Role role);
// The endpoint name of a listener with this role.
std::string listener_name(Role role, int port);
// Returns a unique endpoint name for a process that connects to a listener.
std::string unique_name();

// Returns the secret of kSecretVariable, or that of kSecretFileVariable's file, or otherwise one
// derived from net::user_secret(folder) and `run`, the run's name on all ranks. Throws like the
// functions used. Errors do not reveal any part of a secret.
RunSecret find_secret(const std::string& run, const Variables& variables = process_variable,
                      const std::filesystem::path& folder = net::user_folder());

// Whether kSecretVariable or kSecretFileVariable is set.
bool is_secret_given(const Variables& variables = process_variable);

// Returns the secret for the ranks of this environment; a random one for a single process.
RunSecret secret_of_ranks(const Environment& environment);

// The error for a client that failed mutual authentication with a server. `who` is e.g. "rank 0 at
// host:port". Only for failures `refused` and `wrong`.
Error not_authenticated(const std::string& who, const net::DialFailure& failure,
                        const RunSecret& own);

// Text for timeout errors: how many connections failed to prove that they hold the secret. "" for
// none.
std::string show_unproven(int connections);

// Detects a server that rejects this process: it has repeatedly closed connections without an
// answer, for some seconds.
class Refusals {
 public:
  // Counts a refusal. Returns whether to stop retrying.
  bool add();

 private:
  int count_ = 0;
  Clock::time_point first_;
};

}  // namespace troika::cluster
