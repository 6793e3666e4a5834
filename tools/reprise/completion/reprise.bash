# Completion of reprise(1) for bash. Commands and options are those of `reprise help`; tools/reprise/test/completion.sh compares.
_reprise() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= i
    local commands="demo run train bench tune cache explain dump export ops backends doctor help"
    local of_models=" --weights --prefix --dtype --batch --length --device"
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        -*) ;;
        *)
            command=${COMP_WORDS[i]}
            break
            ;;
        esac
    done
    if [[ -z $command ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$commands --help --usage --version" -- "$cur")
        return
    fi
    case $prev in
    --backend | -b)
        mapfile -t COMPREPLY < <(compgen -W "$("${COMP_WORDS[0]}" backends 2>/dev/null | cut -d " " -f 1)" -- "$cur")
        return
        ;;
    --device | -d)
        mapfile -t COMPREPLY < <(compgen -W "cpu cuda" -- "$cur")
        return
        ;;
    --dtype)
        mapfile -t COMPREPLY < <(compgen -W "f32 tf32 f64 f16 bf16" -- "$cur")
        return
        ;;
    --text | --output | -o | --expect | -e | --peer | -p | --weights)
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        return
        ;;
    --seconds | --steps | --calls | --atol | --rtol | --seed | --input | --prefix | --batch | --length | --rate | --arch) return ;;
    esac
    local options="--help --usage --version --json" words=
    case $command in
    demo) options+=" --text --device --seconds --steps" ;;
    run) options+=" --input --output --backend --expect --compare --atol --rtol --seed --list --tokenizer --text$of_models" ;;
    train) options+=" --steps --rate --backend --compare --output --seed$of_models" ;;
    bench) options+=" --peer --seconds --calls --backend --input --train$of_models" ;;
    tune) options+=" --train --fast$of_models" ;;
    cache) options+=" --warm --arch" ;;
    explain) options+=" --backend --train --input$of_models" ;;
    dump) options+=" --train --kernels$of_models" ;;
    export) options+=" --opset" ;;
    help)
        mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$cur")
        return
        ;;
    esac
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
        return
    fi
    case $command in
    run | train | bench | tune | cache | explain | dump | export)
        words=$("${COMP_WORDS[0]}" run --list 2>/dev/null | cut -d ' ' -f 1)
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur"; compgen -f -- "$cur")
        ;;
    esac
}
complete -o filenames -F _reprise reprise
