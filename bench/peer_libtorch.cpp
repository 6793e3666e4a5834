// The rows of `reprise bench` with libtorch, for `make bench`: reads SECONDS<TAB>NAME lines and answers each with nanoseconds,
// the median of groups of calls of at least 20 us and what a tenth of them stays below, as cmd_bench.c measures its own; zeros
// for a row that it does not have. Built only where libtorch is installed; no part of the product.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct times {
    double median, low;
};

static times measure(double seconds, const std::function<void()> &call) {
    std::vector<double> samples;
    size_t group = 1;
    double end = 0;
    for (int i = 0; i < 3; i++) {
        call();
    }
    while (samples.size() < 400 && (end == 0 || now() < end || samples.size() < 3)) {
        const double begin = now();
        for (size_t i = 0; i < group; i++) {
            call();
        }
        const double took = now() - begin;
        if (end == 0 && took < 20e-6) {
            group *= 2;
            continue;
        }
        if (end == 0) {
            end = now() + seconds;
        }
        samples.push_back(took / static_cast<double>(group));
    }
    std::sort(samples.begin(), samples.end());
    return {1e9 * samples[samples.size() / 2], 1e9 * samples[samples.size() / 10]};
}

int main(int argc, char **argv) {
    if (argc > 1) {
        torch::set_num_threads(std::atoi(argv[1]));
    }
    torch::manual_seed(1);
    const auto a = torch::randn({16}), b = torch::randn({16}), x = torch::randn({10000});
    const auto one = torch::randn({10}), batch = torch::randn({64, 10}), target = torch::randint(0, 10, {64}, torch::kLong);
    const auto big = torch::randn({4096, 1024}), weight = torch::ones({1024}), bias = torch::zeros({1024});
    const auto half = big.to(torch::kBFloat16), other = torch::randn({4096, 1024});
    const auto chain = [](const torch::Tensor &in) {
        return torch::softmax(torch::layer_norm(torch::gelu(in), {1024}, {}, {}, 1e-5), -1);
    };
    torch::nn::Sequential mlp(torch::nn::Linear(10, 64), torch::nn::ReLU(), torch::nn::Linear(64, 10));
    torch::nn::Sequential trained(torch::nn::Linear(10, 64), torch::nn::ReLU(), torch::nn::Linear(64, 10));
    torch::optim::Adam adam(trained->parameters(), torch::optim::AdamOptions(1e-3));
    const std::map<std::string, std::function<void()>> rows = {
        {"add, 16 floats", [&] { torch::add(a, b); }},
        {"sin(2x), 10000 floats", [&] { torch::sin(x * 2); }},
        {"MLP 10-64-10, (10)", [&] { mlp->forward(one); }},
        {"MLP 10-64-10, (64, 10)", [&] { mlp->forward(batch); }},
        {"softmax, 4096 x 1024", [&] { torch::softmax(big, -1); }},
        {"layer_norm, 4096 x 1024", [&] { torch::layer_norm(big, {1024}, weight, bias, 1e-5); }},
        {"sum, 4096 x 1024", [&] { torch::sum(big); }},
        {"copy_, 4096 x 1024", [&] { other.copy_(big); }},
        {"gelu, 4096 x 1024", [&] { torch::gelu(big); }},
        {"gelu-layer_norm-softmax, f32", [&] { chain(big); }},
        {"gelu-layer_norm-softmax, bf16", [&] { chain(half); }},
    };
    const auto step = [&] {
        const auto loss = torch::nn::functional::cross_entropy(trained->forward(batch), target);
        loss.backward();
        adam.step();
        adam.zero_grad();
    };
    std::string line;
    while (std::getline(std::cin, line)) {
        const auto tab = line.find('\t');
        const double seconds = std::atof(line.c_str());
        const std::string name = tab == std::string::npos ? "" : line.substr(tab + 1);
        times ns = {0, 0};
        if (const auto row = rows.find(name); row != rows.end()) {
            torch::NoGradGuard no_grad;
            ns = measure(seconds, row->second);
        } else if (name == "MLP 10-64-10, (64, 10), Adam step") {
            ns = measure(seconds, step);
        }
        std::printf("%.3f %.3f\n", ns.median, ns.low);
        std::fflush(stdout);
    }
    return 0;
}
