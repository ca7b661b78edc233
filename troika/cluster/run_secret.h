// Where a process takes the run's secret from, and how it hands it down.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "troika/base/error.h"
#include "troika/cluster/environment.h"
#include "troika/net/dial.h"
#include "troika/net/secret.h"

namespace troika::cluster {

// 64 hexadecimal digits, or the path of a file of mode 0600 that holds them.
inline constexpr const char* kSecretVariable = "TROIKA_RUN_SECRET";
inline constexpr const char* kSecretFileVariable = "TROIKA_RUN_SECRET_FILE";

struct RunSecret {
  net::Secret secret;
  std::string source;  // for messages: where it is from
};

// The key of those who listen as this: it is derived from the run's secret one way, so that a
// process that was handed one of them cannot listen, or connect to others, in another role.
enum class Role { ranks, relay, launches };
net::Secret role_key(const RunSecret& run, Role role);
// The name of such a listener's endpoint.
std::string listener_name(Role role, int port);
// A name for the endpoint of a process that connects to one, unlike any other's.
std::string unique_name();

// kSecretVariable's, else that of kSecretFileVariable's file, else net::user_secret() of `folder`
// mixed with `run`, the name that all ranks of the run know it by. Throws Error as those functions
// do; no error shows anything of a secret.
RunSecret find_secret(const std::string& run, const Variables& variables = process_variable,
                      const std::filesystem::path& folder = net::user_folder());

// Whether kSecretVariable or kSecretFileVariable gives this process a secret.
bool is_secret_given(const Variables& variables = process_variable);

// For the ranks of this environment; one that is alone shares its secret with nobody.
RunSecret secret_of_ranks(const Environment& environment);

// Why a server did not take a client, or the client not the server, for that client's user.
// `who` is for example "rank 0 at host:port". Only of failures `refused` and `wrong`.
Error not_authenticated(const std::string& who, const net::DialFailure& failure,
                        const RunSecret& own);

// How many connections could not prove that they hold the secret, for the error of those who waited
// in vain; "" for none.
std::string show_unproven(int connections);

// A server that ends connections without an answer, so often and for so long, does not accept us.
class Refusals {
 public:
  // Whether this one was one too many.
  bool add();

 private:
  int count_ = 0;
  Clock::time_point first_;
};

}  // namespace troika::cluster
